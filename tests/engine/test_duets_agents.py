"""DUETS' server and agents: their messages, how these are counted, and what goes wrong."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from privbo_plugins.algorithms.duets import (
    Agent,
    Broadcast,
    DUETSConfig,
    FinitePoints,
    SpaceDomain,
    Upload,
    make_agents,
)
from privbo_plugins.models.kernels import RBF
from privbo_plugins.settings import evolve
from privbo_plugins.spaces import Categorical, Float, Int, Space

from .helpers import cube

GRID = FinitePoints(np.linspace(0, 1, 80)[:, None])
MIXED = SpaceDomain(Space({"a": Float(0, 1), "b": Int(1, 5), "c": Categorical(("u", "v"))}))
DEFAULT = DUETSConfig(n_agents=3, n_trials=90, discretisation=64)
PAPER = DUETSConfig.paper(3, 30, discretisation=64, beta=0.5)
ONE = DUETSConfig(n_agents=1, n_trials=30, discretisation=64)
each_config = pytest.mark.parametrize(
    "config", [DEFAULT, PAPER, ONE], ids=["default", "paper", "one agent"]
)
both = pytest.mark.parametrize("config", [DEFAULT, PAPER], ids=["default", "paper"])


def reward(agent, draw, x):
    """A smooth function with something like noise, the same in every run."""
    return float(0.1 * np.sin(100 * x.sum() + 7 * agent + 13 * draw) - (x[0] - 0.4) ** 2)


def tell_all(agent):
    for draw, x in enumerate(agent.points):
        agent.tell(draw, reward(agent.number, draw, x))


def epoch(server, agents, *, lost=()):
    """One epoch; those that are lost neither report nor hear."""
    message = server.inducing_set()
    present = [agent for agent in agents if agent.number not in lost]
    for agent in present:
        tell_all(agent)
        assert server.receive(agent.upload(message))
    broadcast = server.close(without=lost)
    for agent in present:
        agent.hear(broadcast)
    return broadcast


def projected_process(kernel, S, D, Y, X, lam):
    """The sparse posterior's mean without roots: k_XS (lam K_SS + K_SD K_DS)^-1 K_SD Y."""
    A = lam * kernel.k(S, S) + kernel.k(S, D) @ kernel.k(D, S)
    return np.asarray(kernel.k(X, S) @ np.linalg.lstsq(A, kernel.k(S, D) @ Y, rcond=1e-13)[0])


def travelled(state):
    return dict(json.loads(json.dumps(state, allow_nan=False)))


# What is broadcast ------------------------------------------------------------------------------


@each_config
@pytest.mark.parametrize("lost", [(), (0,)], ids=["all", "one lost"])
def test_what_is_broadcast_is_the_posterior_of_the_agents_that_reported(config, lost):
    """Dense; a lost agent counts for nothing and may come back."""
    if lost and config.n_agents == 1:
        config = evolve(config, n_agents=2)
    server, agents = make_agents(config, GRID, key=4)
    present = [agent for agent in agents if agent.number not in lost]
    for _ in range(2):
        message = server.inducing_set()
        public_state = server.public_state
        S = public_state.inducing.D if message is None else np.array(message.points)
        D = np.vstack([agent.points for agent in present])
        Y = np.array([reward(a.number, t, x) for a in present for t, x in enumerate(a.points)])
        broadcast = epoch(server, agents, lost=lost)
        assert broadcast.agents == tuple(agent.number for agent in present)
        lam, c = config.noise_ratio, 0.0
        if not config.published:
            lam, c = broadcast.scale[0], public_state.level or 0.0
        X = np.linspace(0, 1, 23)[:, None]
        expected = c + projected_process(
            public_state.kernel, np.unique(S, axis=0), D, Y - c, X, lam
        )
        for number in lost:
            if config.published:
                with pytest.raises(ValueError, match="has no inducing set"):
                    agents[number].hear(broadcast)
            agents[number].hear(broadcast, message)
        for known in (public_state, *(agent.public_state for agent in agents)):
            np.testing.assert_allclose(known.posterior.mean(X), expected, atol=2e-5)
            assert known.active.digest == public_state.active.digest
        for agent in agents:
            assert np.array_equal(agent.points, public_state.points(agent.number))
    assert epoch(server, agents).agents == tuple(range(config.n_agents))


@each_config
@pytest.mark.parametrize(
    "domain", [GRID, MIXED, SpaceDomain(cube(2))], ids=["line", "mixed", "square"]
)
def test_agents_apart_and_together_reach_the_same_discretisations(config, domain):
    runs = []
    for together in (False, True):
        server, agents = make_agents(config, domain, 5, together=together)
        digests = []
        while not server.public_state.last:
            broadcast = epoch(server, agents)
            digests.append(server.public_state.active.digest)
            for agent in agents:
                assert agent.public_state.active.digest == digests[-1]
                assert (agent.public_state is server.public_state) == together
            broadcast = Broadcast.from_dict(travelled(broadcast.to_dict()))
            assert broadcast == server.public_state.heard[-1]
        assert len(digests) >= 2
        runs.append((digests, server.communication))
    assert runs[0] == runs[1]


# Counting ---------------------------------------------------------------------------------------


def test_a_small_run_counted_by_hand():
    """One inducing point spans everything: rewards where 2 < 1 + 2, projections where 4 > 3."""
    config = DUETSConfig(n_agents=3, n_trials=42, lengthscale=100.0)
    server, agents = make_agents(config, GRID, key=0)
    sent = server.communication
    tell_all(agents[0])
    assert agents[0].upload(None).kind == "rewards"
    epoch(server, agents)
    # 3 agents with 2 rewards; v_bar of one number, lam, s and c.
    assert (sent.up, sent.down) == (6, 4)
    tell_all(agents[0])
    assert agents[0].upload(None).kind == "projection"
    epoch(server, agents)
    # 3 agents with 1 + 2 numbers; v_bar, lam and s.
    assert (sent.up, sent.down) == (6 + 9, 4 + 3)
    assert sent.per_agent == 15 / 3 + 7
    assert server.public_state.last
    assert server.inducing_set() is None
    assert sent.down == 7


@pytest.mark.parametrize("d", [1, 3])
def test_the_papers_messages_counted_by_hand(d):
    """p0 so large that every point is kept: m = N T_1; m D + (m + 1) down, m an agent up."""
    config = DUETSConfig.paper(3, 20, p0=1e9, discretisation=64)
    server, agents = make_agents(config, SpaceDomain(cube(d)), key=2)
    message = server.inducing_set()
    D = np.vstack([agent.points for agent in agents])
    assert np.array_equal(np.array(message.points), D)
    assert server.inducing_set() is message
    assert server.communication.down == 6 * d
    epoch(server, agents)
    assert server.communication.down == 6 * d + 6 + 1
    assert server.communication.up == 3 * 6
    assert server.communication.per_agent == 6 + 6 * d + 7


def test_points_are_kept_with_p0_times_the_largest_variance():
    """Seeded: five standard deviations of a count over 60 keys; the variance is the dense one."""
    config = DUETSConfig.paper(10, 50, p0=1.5, discretisation=64, noise_ratio=0.5, lengthscale=0.3)
    expected, spread, kept = 0.0, 0.0, 0
    for key in range(60):
        server, agents = make_agents(config, SpaceDomain(cube(1)), key=key)
        D = np.vstack([agent.points for agent in agents])
        X, kernel = server.public_state.active.U, RBF(0.3)
        inverse = np.linalg.inv(kernel.k(D, D) + 0.5 * np.eye(20))
        k = kernel.k(X, D)
        p = 1.5 * (1 - np.einsum("ij,jk,ik->i", k, inverse, k)).max()
        assert 0.0 < p < 1.0
        message = server.inducing_set()
        kept, expected, spread = (
            kept + len(message.points),
            expected + 20 * p,
            spread + 20 * p * (1 - p),
        )
    assert abs(kept - expected) < 5 * np.sqrt(spread)


def test_what_was_sent_in_vain_is_counted():
    server, agents = make_agents(DEFAULT, GRID, key=0)
    tell_all(agents[0])
    upload = agents[0].upload(None)
    assert server.receive(upload)
    assert not server.receive(upload)
    other = replace(upload, numbers=tuple(2 * y for y in upload.numbers))
    assert not server.receive(other)
    assert server.communication.up == 3 * upload.reals
    assert server.waiting_for == [1, 2]
    # And the first one stands.
    plain, others = make_agents(DEFAULT, GRID, key=0)
    assert epoch(server, agents[1:], lost=()) == epoch(plain, others)


# What goes wrong --------------------------------------------------------------------------------


def test_an_epoch_ends_when_all_have_reported():
    server, agents = make_agents(DEFAULT, GRID, key=0)
    with pytest.raises(ValueError, match="still waits for 2 of its 2 rewards"):
        agents[0].upload(None)
    for agent in agents[:2]:
        tell_all(agent)
        server.receive(agent.upload(None))
    with pytest.raises(ValueError, match=r"still waits for the agents \[2\]"):
        server.close()
    for everybody in ((0, 1, 2), range(5)):
        with pytest.raises(ValueError, match="still waits"):
            server.close(without=everybody)
    assert server.close(without=[2]).agents == (0, 1)


def test_rewards_of_other_epochs_and_draws():
    server, agents = make_agents(DEFAULT, GRID, key=0)
    agent = agents[0]
    for nothing in (math.nan, math.inf, -math.inf):
        with pytest.raises(ValueError, match="reward must be finite"):
            agent.tell(0, nothing)
    assert agent.tell(0, 0.5)
    assert not agent.tell(0, 0.7)
    assert agent.missing() == [1]
    for draw in (-1, 2):
        with pytest.raises(ValueError, match=f"2 draws an agent, got {draw}"):
            agent.tell(draw, 0.0)
    assert not agent.tell(1, 0.0, epoch=2)
    assert agent.tell(1, 0.1)
    for other in agents[1:]:
        tell_all(other)
    for one in agents:
        server.receive(one.upload(None))
    broadcast = server.close()
    agent.hear(broadcast)
    assert not agent.tell(0, 9.0, epoch=1)
    assert agent.missing() == [0, 1, 2, 3]
    for number in (-1, 3):
        with pytest.raises(ValueError, match="numbered from 0 to 2"):
            Agent(number, agent.public_state)


@both
def test_broadcasts_are_heard_in_order_and_once(config):
    server, agents = make_agents(config, GRID, key=0)
    messages, broadcasts = [], []
    for _ in range(3):
        messages.append(server.inducing_set())
        broadcasts.append(epoch(server, agents, lost=(2,)))
    late = agents[2]
    with pytest.raises(ValueError, match="broadcast of epoch 2 came before that of epoch 1"):
        late.hear(broadcasts[1], messages[1])
    assert late.public_state.j == 1
    for message, broadcast in zip(messages, broadcasts, strict=True):
        late.hear(broadcast, message)
        for _ in range(2):
            late.hear(broadcasts[0], messages[0])
    assert late.public_state.active.digest == server.public_state.active.digest
    assert late.public_state.heard == broadcasts


def test_another_discretisation_is_noticed():
    finer = evolve(DEFAULT, discretisation=128)
    cases = [(SpaceDomain(cube(d)), DEFAULT, 1) for d in (1, 2, 3)]
    cases += [(GRID, DEFAULT, 1), (MIXED, DEFAULT, 1), (SpaceDomain(cube(1)), finer, 0)]
    for domain, config, key in cases:
        other = make_agents(config, domain, key)[1]
        server, agents = make_agents(DEFAULT, domain, key=0)
        broadcast = epoch(server, agents)
        before = other[0].public_state.active.digest
        with pytest.raises(ValueError, match="settings, key or hardware differ"):
            other[0].hear(broadcast)
        assert other[0].public_state.active.digest == before
        assert other[0].public_state.j == 1


FITTED = DUETSConfig(n_agents=3, first_epoch=16, n_trials=600, lengthscale=0.3)
"""Projections with sums."""

NO_NUMBERS = [math.nan, math.inf, "a", None, True, 10**400]


def reported(config):
    """An epoch whose agents have evaluated, and an upload of the second."""
    server, agents = make_agents(config, GRID, key=0)
    message = server.inducing_set()
    for agent in agents:
        tell_all(agent)
    return server, agents, agents[1].upload(message)


def state_of(server):
    """What it has heard, waits for and counts."""
    public_state = server.public_state
    return list(public_state.heard), server.waiting_for, replace(server.communication)


def changed_uploads(upload):
    n = upload.reals
    bad = [{"agent": agent} for agent in (-1, 3, 1.0, True)]
    bad += [{"numbers": (*upload.numbers[:-1], x)} for x in NO_NUMBERS]
    bad += [{"numbers": x} for x in (None, "a" * n, np.zeros((n, 1)), (*upload.numbers, 0.0))]
    bad += [{"kind": kind} for kind in ("zzz", None, ["rewards"])]
    bad += [{"kind": kind, "numbers": (0.0,) * 50} for kind in ("rewards", "projection")]
    bad += [{"epoch": epoch} for epoch in (0, 2, 1.0, True)]
    return [replace(upload, **change) for change in bad]


@pytest.mark.parametrize("config", [DEFAULT, PAPER, FITTED], ids=["rewards", "paper", "sums"])
def test_what_no_agent_sends_is_neither_stored_nor_counted(config):
    server, agents, upload = reported(config)
    before = state_of(server)
    for wrong in changed_uploads(upload):
        with pytest.raises(ValueError, match=r"[Uu]pload|projection"):
            server.receive(wrong)
        assert state_of(server) == before
    for agent in agents:
        assert server.receive(agent.upload(server.inducing_set()))
    full = state_of(server)
    for wrong in changed_uploads(upload):  # as duplicates
        with pytest.raises(ValueError, match=r"[Uu]pload|projection"):
            server.receive(wrong)
    assert state_of(server) == full
    server.close()
    late = state_of(server)
    assert not server.receive(upload)  # too late: it is neither read nor counted
    assert not server.receive(replace(upload, numbers=(math.nan,)))
    with pytest.raises(ValueError, match="one of the agents"):
        server.receive(replace(upload, agent=-1))
    assert state_of(server) == late
    assert late[2].up == before[2].up + 3 * upload.reals


def test_sums_that_no_rewards_have_are_refused():
    server, _, upload = reported(FITTED)
    assert upload.kind == "projection"
    *v, one, two = upload.numbers
    for sums in ((one, -two), (0.0, -1e-9), (one, 0.9 * one**2 / 16), (1e90, two), (-1e90, two)):
        with pytest.raises(ValueError, match="their squares"):
            server.receive(replace(upload, numbers=(*v, *sums)))
    assert server.waiting_for == [0, 1, 2]
    assert server.communication.up == 0
    assert server.receive(replace(upload, numbers=(*v, one, one**2 / 16)))


@pytest.mark.parametrize("value", [-1e300, 1e-160, 0.0])
@pytest.mark.parametrize("config", [DEFAULT, PAPER, FITTED], ids=["rewards", "paper", "sums"])
def test_honest_agents_are_never_refused(config, value):
    server, agents = make_agents(config, GRID, key=0)
    message = server.inducing_set()
    for agent in agents:
        for draw in range(len(agent.points)):
            agent.tell(draw, value)
        assert server.receive(agent.upload(message))
    broadcast = server.close()
    for agent in agents:
        agent.hear(broadcast, message)
        assert agent.public_state.active.digest == server.public_state.active.digest


def test_errors_do_not_tell_what_an_upload_holds():
    server, _, upload = reported(FITTED)
    marked = (*upload.numbers[:-2], 0.7654321, 1e-9)
    for numbers in (marked, (*marked[:-1], math.nan), marked[1:]):
        with pytest.raises(ValueError, match="numbers") as caught:
            server.receive(replace(upload, numbers=numbers))
        assert "7654" not in str(caught.value)


def test_no_epoch_is_open_once_the_horizon_is_used_up():
    server, agents, upload = reported(DEFAULT)
    epoch(server, agents)
    server.public_state.skip()
    for number in (2, 3):
        with pytest.raises(ValueError, match="No epoch of agents 0 to 2 is open"):
            server.receive(replace(upload, epoch=number, numbers=()))
    with pytest.raises(ValueError, match="horizon is used up"):
        server.public_state.hear(replace(server.public_state.heard[0], epoch=3))


@both
@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_an_epoch_that_would_leave_nothing_does_not_end(config, wrong, monkeypatch):
    server, agents, _ = reported(config)
    message = server.inducing_set()
    for agent in agents:
        server.receive(agent.upload(message))
    before, digest = state_of(server), server.public_state.active.digest
    with monkeypatch.context() as patch:
        patch.setattr(
            "privbo_plugins.algorithms.duets.server.solved", lambda G, *_: np.full(len(G), wrong)
        )
        with pytest.raises(ValueError, match="nothing was broadcast"):
            server.close()
        assert state_of(server) == before
        assert server.public_state.active.digest == digest
    broadcast = server.close()
    for agent in agents:
        agent.hear(broadcast)
        assert agent.public_state.active.digest == server.public_state.active.digest


def changed_broadcasts(heard):
    m, v = len(heard.v_bar), heard.v_bar
    bad = [{"v_bar": (x,) * m} for x in NO_NUMBERS]
    bad += [{"v_bar": x} for x in (v[:-1], (*v, 0.0), (), None, "a" * m)]
    bad += [{"sigma_max": x} for x in (math.nan, math.inf, -1.0, "a", True, (1.0,))]
    bad += [{"sigma_max": 0.5 if heard.sigma_max is None else None}]
    bad += [
        {"agents": x} for x in ((), (7,), (-1, 0), (0, 0, 1), (1, 0), (0.0, 1.0), (True,), None, 1)
    ]
    bad += [{"epoch": x} for x in (1.0, None, "1", True, 2)]
    bad += [{"digest": 0}, {"digest": None}]
    s = heard.scale
    scales = [None, (*s, 1.0), (1.0,) * (len(s) + 1), (math.nan,) * 3, "abc"]
    if s:
        scales += [(), s[:2], (0.0, *s[1:]), (s[0], -1.0, s[2]), (*s[:2], math.inf)]
    return [replace(heard, **change) for change in bad + [{"scale": x} for x in scales]]


@each_config
def test_a_broadcast_that_no_server_sends_changes_nothing(config):
    server, agents = make_agents(config, GRID, key=0)
    late = make_agents(config, GRID, key=0)[1][0]
    message = server.inducing_set()
    heard = epoch(server, agents)
    before = (
        list(late.public_state.heard),
        late.public_state.digest,
        late.public_state.T_j,
        late.public_state.evaluated,
    )
    for wrong in changed_broadcasts(heard):
        with pytest.raises(ValueError, match=r"roadcast|discretisation"):
            late.hear(wrong, message)
        public_state = late.public_state
        assert (
            list(late.public_state.heard),
            public_state.digest,
            public_state.T_j,
            public_state.evaluated,
        ) == before
        assert public_state.posterior is None
        assert public_state.level is None
    late.hear(heard, message)
    assert late.public_state.active.digest == server.public_state.active.digest


def test_a_broadcast_that_leaves_no_point_changes_nothing():
    """Its numbers are finite, and the bar they set is not."""
    config = evolve(DEFAULT, beta=1e6)
    server, agents = make_agents(config, GRID, key=0)
    late = make_agents(config, GRID, key=0)[1][0]
    heard = epoch(server, agents)
    lam, _, c = heard.scale
    with pytest.raises(ValueError, match="no point of the active set would stay"):
        late.hear(replace(heard, scale=(lam, 1e308, c)))
    assert late.public_state.j == 1
    assert late.public_state.posterior is None
    assert late.public_state.level is None
    late.hear(heard)
    assert late.public_state.active.digest == server.public_state.active.digest


# After a crash ----------------------------------------------------------------------------------


@each_config
def test_a_server_that_crashed_hears_its_broadcasts_and_goes_on(config):
    server, agents = make_agents(config, GRID, key=3)
    for _ in range(2):
        epoch(server, agents)
    again = make_agents(config, GRID, key=3)[0]
    for heard in server.public_state.heard:
        again.hear(Broadcast.from_dict(travelled(heard.to_dict())))
    assert again.public_state.active.digest == server.public_state.active.digest
    assert again.public_state.heard == server.public_state.heard
    twin, others = make_agents(config, GRID, key=3)
    for _ in range(2):
        epoch(twin, others)
    assert epoch(again, agents) == epoch(twin, others)


def test_an_upload_does_not_show_its_numbers():
    assert "0.625" not in repr(Upload(1, 0, "rewards", (0.625,)))
