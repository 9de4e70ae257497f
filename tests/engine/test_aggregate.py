"""Rounds in which the server sees the agents' noisy sum alone: what comes out, and who is lost.

Without noise such a round must release bit for bit what a trusted server does for the same
agents: its sums are integers.
"""

from __future__ import annotations

import copy
import json
import math
from contextlib import closing, contextmanager
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("cryptography", reason="needs the federation extra")

from privbo_plugins import sealing
from privbo_plugins.algorithms.dp_fts_de import FederationConfig, shares
from privbo_plugins.algorithms.dp_fts_de.plan import make_federation_plan
from privbo_plugins.errors import FederationError, PrivacyError
from privbo_plugins.federation import FederatedServer, masking, phases
from privbo_plugins.federation.masking import Keys
from privbo_plugins.federation.messages import MalformedError
from privbo_plugins.federation.phases import KEYS, MASKED, OPEN, SHARES
from privbo_plugins.privacy.mechanisms import FRACTION_BITS, SENSITIVITY_SLACK
from privbo_plugins.privacy.noise import InsecureNoise, SecureNoise
from privbo_plugins.sessions import aggregation
from privbo_plugins.spaces import Float, Space
from privbo_plugins.store.transaction import Transaction

from .helpers import in_threads

LINE = Space({"x": Float(0.0, 1.0)})
M = 4


def config_of(n_agents=6, **changed):
    given = {"population": "explore", "n_features": M, "clipping_norm": 3.0, "n_rounds": 2}
    return FederationConfig(n_agents, **{**given, "z": 0.0, "trust": "aggregate", **changed})


def trusted(config):
    changed = {**config.to_dict(), "trust": "server", "colluding": None, "min_present": None}
    return FederationConfig.from_dict(changed)


def vectors(n, seed=0):
    return np.random.default_rng(seed).normal(size=(n, M))


def server_of(config, **more):
    return FederatedServer(config, **{"space": LINE, "deadline": None, **more})


def play(server, V):
    """A round of all agents, one after the other."""
    links = [server.connect(n) for n in range(len(V))]
    rounds = {link.submit(w) for link, w in zip(links, V, strict=True)}
    (t,) = rounds
    assert t is not None
    found = [link.collect(t) for link in links]
    assert len({None if b is None else b.digest() for b in found}) == 1
    return found[0]


def sum_of(config, V, agents):
    """What a trusted server without noise releases of some agents' vectors."""
    server = server_of(trusted(config))
    for n in agents:
        server.connect(n).submit(V[n])
    server.close_round()
    return server.broadcasts()[-1]


# What is released -------------------------------------------------------------------------------


@pytest.mark.parametrize("n_agents", [2, 3, 7])
def test_without_noise_it_is_bit_for_bit_what_a_trusted_server_releases(n_agents):
    config, V = config_of(n_agents, n_regions=2), 5 * vectors(n_agents)
    V[0, 0] = math.nan
    found = play(server_of(config), V)
    assert (found.weights == sum_of(config, V, range(n_agents)).weights).all()


# Who is lost ------------------------------------------------------------------------------------


class Exchange:
    """An agent's way to a server, which dies before what it sends in some phase."""

    def __init__(self, server, n, dies):
        self.server, self.n, self.dies = server, n, dies
        self.seen = []

    def enter(self, keys):
        return self.server.rounds.enter(self.n, keys)

    def turn(self, asked):
        if asked["phase"] == self.dies and asked["sent"] is not None:
            raise FederationError("the agent is dead")
        self.seen.append(asked)
        return self.server.rounds.turn(self.n, asked, patience=0.0)


def agents_of(server, V, dies=None, noise=None):
    """All agents' parts; some die before they send in a phase."""
    dies = dies or {}
    made = []
    for n, w in enumerate(V):
        exchange = Exchange(server, n, dies.get(n))
        made.append(phases.Masking(exchange, server.config, n, noise))
        assert made[-1].submit(w) == len(server.broadcasts()) + 1
    return made


def go_on(agents):
    while any([agent.step() for agent in agents]):
        pass


@pytest.mark.parametrize("phase", [SHARES, MASKED, OPEN])
def test_agents_that_are_lost_in_a_phase_do_not_spoil_the_sum(phase, clock):
    config, V = config_of(9, min_present=7), vectors(9)
    server = server_of(config, deadline=10.0)
    agents = agents_of(server, V, dies={2: phase, 5: phase})
    for _ in range(4):
        go_on(agents)
        clock.now += 11.0
        server.poll()
    (found,) = server.broadcasts()
    counted = range(9) if phase == OPEN else [n for n in range(9) if n not in (2, 5)]
    assert (found.weights == sum_of(config, V, counted).weights).all()


@pytest.mark.parametrize("phase", [KEYS, SHARES, MASKED])
def test_too_few_agents_release_nothing_and_cost_nothing(phase, clock):
    config, V = config_of(5, min_present=4), vectors(5)
    server = server_of(config, deadline=10.0)
    sent = V[:3] if phase == KEYS else V
    agents = agents_of(server, sent, dies={0: phase, 1: phase})
    for _ in range(4):
        go_on(agents)
        clock.now += 11.0
        server.poll()
    assert server.broadcasts() == []
    assert server.ledger() == []
    with pytest.raises(FederationError, match="3 agents of at least 4"):
        agents[2].run(1)
    assert play(server, V) is not None  # the round is tried again


def test_a_sum_that_nobody_helps_to_open_has_cost_its_round(clock):
    V = vectors(5)
    server = server_of(config_of(5, z=1.0), deadline=10.0)
    agents = agents_of(server, V, dies=dict.fromkeys(range(3), OPEN))
    go_on(agents)
    assert [charge.key for charge in server.ledger()] == ["1"]
    clock.now += 11.0
    server.poll()
    assert server.broadcasts() == []
    assert server.n_left == 1  # not two: it is paid for
    assert "Round 1 was not released" in server.given_up
    assert play(server, V) is not None
    assert [charge.key for charge in server.ledger()] == ["1", "1/2"]
    assert server.finished  # of two rounds, one was lost
    assert server.connect(0).submit(V[0]) is None
    assert (server.n_left, server.given_up) == (0, "")
    guarantee = server.guarantee()
    assert guarantee.n_released == 2
    assert "1 of the rounds are paid for" in guarantee.notes[-1]


def test_a_server_that_was_started_again_counts_what_it_had_paid_for(tmp_path):
    V, url = vectors(5), f"sqlite:///{tmp_path / 'server.db'}"
    first = server_of(config_of(5, z=1.0, n_rounds=1), vault=url)
    go_on(agents_of(first, V, dies=dict.fromkeys(range(3), OPEN)))
    again = server_of(config_of(5, z=1.0, n_rounds=1), vault=url)
    assert again.finished
    assert again.broadcasts() == []
    assert again.connect(0).submit(V[0]) is None


def test_no_sum_is_opened_of_a_round_that_another_server_has_released(tmp_path):
    """It would be one that nobody has paid for."""
    V, url = vectors(5), f"sqlite:///{tmp_path / 'server.db'}"
    one, other = (server_of(config_of(5, z=1.0), vault=url) for _ in range(2))
    agents = agents_of(one, V)
    released = play(other, V)
    go_on(agents)
    assert [b.digest() for b in one.broadcasts()] == [released.digest()]
    assert [charge.key for charge in one.ledger()] == ["1"]
    assert not any(asked["phase"] == OPEN for agent in agents for asked in _seen(agent))


def test_of_two_servers_of_a_run_both_pay_for_what_they_open(tmp_path):
    V, url = vectors(5), f"sqlite:///{tmp_path / 'server.db'}"
    one, other = (server_of(config_of(5, z=1.0), vault=url) for _ in range(2))
    dies = dict.fromkeys(range(5), OPEN)
    go_on(agents_of(one, V, dies=dies))  # charged, and not opened yet
    released = play(other, V)
    assert released is not None
    assert [charge.key for charge in other.ledger()] == ["1", "1/2"]
    assert other.guarantee().n_released == 2


def test_a_vault_that_refuses_the_charge_opens_nothing(monkeypatch):
    V = vectors(5)
    server = server_of(config_of(5, z=1.0))

    def refuse(*_args):
        raise OSError("secret 0.25 of a database")

    with monkeypatch.context() as patched:
        patched.setattr(Transaction, "charge", refuse)
        agents = agents_of(server, V)
        go_on(agents)
        with pytest.raises(FederationError, match="server failed inside") as caught:
            server.poll()
        assert "0.25" not in str(caught.value)
        assert caught.value.__context__ is None
        current = server.rounds.current
        assert current.phase == MASKED
        assert not any(asked["phase"] == OPEN for a in agents for asked in _seen(a))
    server.poll()
    go_on(agents)
    assert len(server.broadcasts()) == 1


def _seen(agent):
    return [asked for asked in agent._exchange.seen if asked["sent"] is not None]


def test_an_agent_that_comes_in_the_middle_waits_for_the_end():
    V = vectors(5)
    server = server_of(config_of(5))
    go_on(agents_of(server, V))
    server = server_of(config_of(5, min_present=4), deadline=1000.0)
    agents = agents_of(server, V[:4])
    server.close_round()  # nobody waits for the fifth
    late = server.connect(4)
    assert late.submit(V[4]) == 1
    go_on(agents)
    found = late.collect(1)
    assert (found.weights == sum_of(server.config, V, range(4)).weights).all()


def test_an_agent_that_did_not_wait_for_a_round_takes_part_in_the_next():
    server, V = server_of(config_of(4)), vectors(4)
    links = [server.connect(n) for n in range(4)]
    for t in (1, 2):
        assert [link.submit(w) for link, w in zip(links, V, strict=True)] == [t] * 4
        for link in links[1:]:  # the first one is busy elsewhere
            assert link.collect(t) is not None
    both = [b.weights.tobytes() for b in server.broadcasts()]
    assert both == [sum_of(server.config, V, range(4)).weights.tobytes()] * 2


# What an agent refuses --------------------------------------------------------------------------


def one(server, n=0):
    exchange = Exchange(server, n, None)
    return phases.Masking(exchange, server.config, n), exchange


def _fewer(name):
    def change(told):
        held = told[name]
        for v in list(held)[2:]:
            held.remove(v) if isinstance(held, list) else held.pop(v)

    return change


def _without_itself(told):
    told["present"].remove(0)


def _a_stranger(told):
    told["present"].append(77)


def _other_keys(told):
    told["keys"]["0"] = phases.written(Keys.new().public)


def _bad_point(told):
    told["keys"]["1"]["c"] = phases.text(bytes(32))


def _until_it_refuses(agents):
    for _ in range(10):
        with agents[0]._lock:
            agents[0]._step(wait=True)
        go_on(agents[1:])


@pytest.mark.parametrize(
    ("phase", "change"),
    [
        (KEYS, _fewer("keys")), (KEYS, _other_keys), (KEYS, _bad_point),
        (KEYS, lambda told: told.update(keys=None)), (SHARES, _fewer("shares")),
        (SHARES, lambda told: told["shares"].update({"1": 7})), (MASKED, _fewer("present")),
        (MASKED, _without_itself), (MASKED, _a_stranger),
        (MASKED, lambda told: told.update(present=None)), (OPEN, None),
    ],
)  # fmt: skip
def test_an_agent_helps_to_open_no_other_sum_than_it_agreed_to(phase, change, monkeypatch):
    """The last server asks for the shares of another sum, of fewer agents, once it has one's."""
    server, V = server_of(config_of(6, min_present=5)), vectors(6)
    original, turn = aggregation.Attempt.told, Exchange.turn

    def lying(self, u, asked):
        told = copy.deepcopy(original(self, u, asked))
        if u == 0 and asked == phase and told is not None:
            change(told)
        return told

    def asking_again(self, asked):
        told = turn(self, asked)
        return {"present": list(range(5))} if asked["phase"] == OPEN and self.n == 0 else told

    if change is None:
        monkeypatch.setattr(Exchange, "turn", asking_again)
    monkeypatch.setattr(aggregation.Attempt, "told", lying)
    agents = agents_of(server, V)
    go_on(agents[1:])
    with pytest.raises(FederationError, match="no round that this agent may help") as caught:
        _until_it_refuses(agents)
    assert caught.value.__context__ is None
    sent = [asked["phase"] for asked in _seen(agents[0])]
    assert sent == list(range(SHARES, phase + 1))


def test_an_agent_opens_no_more_sums_than_rounds_were_agreed():
    V, config = vectors(5), config_of(5, n_rounds=1)
    server = server_of(config)
    agents = agents_of(server, V)
    go_on(agents)
    assert len(server.broadcasts()) == 1
    forgetful = server_of(config)  # its ledger is gone
    for n, agent in enumerate(agents):
        agent._exchange = Exchange(forgetful, n, None)
        agent.submit(V[n])
    go_on(agents)
    assert forgetful.broadcasts() == []
    assert not any(asked["phase"] == OPEN for agent in agents for asked in _seen(agent))


def test_shares_are_given_of_the_seed_or_of_the_key_never_of_both(clock):
    server = server_of(config_of(9, min_present=7), deadline=10.0)
    agents = agents_of(server, vectors(9), dies={3: MASKED})
    for _ in range(3):
        go_on(agents)
        clock.now += 11.0
        server.poll()
    opened = [asked["sent"] for a in agents for asked in _seen(a) if asked["phase"] == OPEN]
    assert len(opened) >= server.config.threshold
    for sent in opened:
        assert set(sent["keys"]) == {"3"}
        assert "3" not in sent["seeds"]
        assert not set(sent["keys"]) & set(sent["seeds"])


def test_keys_and_noise_are_new_in_every_attempt():
    server = server_of(config_of(4, z=1.0))
    V, public, masked = vectors(4), [], []
    agents = agents_of(server, V)
    for t in (1, 2):
        assert t == 1 or [agent.submit(w) for agent, w in zip(agents, V, strict=True)] == [2] * 4
        attempt = server.rounds.current
        public += list(attempt._public.values())
        go_on(agents)
        masked += [y.tobytes() for y in attempt._y.values()]
    flat = [part for keys in public for part in (keys.c, keys.s, keys.b)]
    assert len(set(flat)) == len(flat) == 24
    assert len(set(masked)) == 8


# What a server refuses --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent",
    [
        {}, {"shares": {}}, {"shares": {"1": "?", "2": "", "3": ""}}, {"shares": {"1": 3}},
        {"shares": []}, {"vector": "AAAA"}, [], 7,
    ],
)  # fmt: skip
def test_what_is_no_message_is_refused_and_another_may_follow(sent):
    server, V = server_of(config_of(4)), vectors(4)
    agents = agents_of(server, V)
    attempt = server.rounds.current
    assert attempt.phase == SHARES
    asked = {"attempt": attempt.name, "phase": SHARES, "sent": sent}
    with pytest.raises(MalformedError) as caught:
        server.rounds.turn(0, asked, patience=0.0)
    assert caught.value.args == ()
    go_on(agents)
    assert len(server.broadcasts()) == 1


def test_wrong_shares_end_the_attempt_and_release_nothing(monkeypatch):
    server, V = server_of(config_of(4)), vectors(4)
    original = phases._Attempt._held

    def wrong(self, v):
        held = original(self, v)
        return (held[0], bytes(masking.SHARE)) if self.agent == 3 and held else held

    monkeypatch.setattr(phases._Attempt, "_held", wrong)
    agents = agents_of(server, V)
    go_on(agents)
    asked = {"attempt": server.rounds.given_up.name, "phase": OPEN, "sent": None}
    with pytest.raises(FederationError, match="shares that do not open the sum"):
        server.rounds.turn(0, asked)
    assert server.broadcasts() == []
    assert len(server.ledger()) == 1


def test_a_vector_in_the_clear_is_refused():
    server = server_of(config_of(4))
    with pytest.raises(PrivacyError, match="masked vectors alone"):
        server.rounds.submit(0, np.ones(M))
    plain = server_of(trusted(config_of(4)))
    with pytest.raises(PrivacyError, match="takes vectors"):
        plain.rounds.enter(0, {"keys": phases.written(Keys.new().public)})
    assert plain.connect(0).submit(np.ones(M)) == 1  # and goes on as it was


P = 2**255 - 19
LOW_ORDER = [
    0, 1, 325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823, P - 1, P, P + 1,
]  # fmt: skip
"""Points of order 1, 2, 4 and 8 on Curve25519 and its twist (RFC 7748, section 7; Bernstein)."""


@pytest.mark.parametrize("point", LOW_ORDER)
@pytest.mark.parametrize("name", ["c", "s"])
def test_a_key_with_which_nobody_has_a_secret_is_refused(name, point):
    """By the server, so that it spoils no round of the others."""
    server, V = server_of(config_of(5, min_present=4)), vectors(5)
    keys = phases.written(Keys.new().public) | {name: phases.text(point.to_bytes(32, "little"))}
    with pytest.raises(MalformedError) as caught:
        server.rounds.enter(4, {"keys": keys})
    assert caught.value.__context__ is None
    server.connect(4).leave()
    assert play(server, V[:4]) is not None


# Shares of noise --------------------------------------------------------------------------------


class Told:
    """Noise that writes down when it was drawn."""

    def __init__(self, events):
        self.events, self.drawn = events, SecureNoise()

    def discrete_gaussian(self, d, scale):
        self.events.append("drawn")
        return self.drawn.discrete_gaussian(d, scale)


class Heard(Exchange):
    """A way to a server that writes down when something was said."""

    events: list[str]

    def enter(self, keys):
        self.events.append("said")
        return super().enter(keys)

    def turn(self, asked):
        self.events.append("said")
        return super().turn(asked)


def test_noise_is_drawn_before_an_agent_says_anything():
    """Drawing takes as long as what is drawn makes it, and a server sees when messages come."""
    server, V, agents = server_of(config_of(4, z=1.0)), vectors(4), []
    events = []
    for n in range(4):
        exchange = Heard(server, n, None)
        exchange.events = events
        agents.append(phases.Masking(exchange, server.config, n, Told(events)))
    for t in (1, 2):
        for agent, w in zip(agents, V, strict=True):
            events.clear()
            assert agent.submit(w) == t
            assert events[events.index("drawn") :] == ["drawn", "said"]
        events.clear()
        go_on(agents)
        assert len(server.broadcasts()) == t
        assert set(events) == {"said"}


def test_who_does_not_collude_adds_the_noise_of_a_trusted_server():
    """As many as can be missing are, and c know their own shares: T - c are left."""
    config = config_of(20, z=1.3, colluding=4, min_present=15)
    sigma = shares.share_scale(config)
    left = math.sqrt(15 - 4) * sigma
    assert left == pytest.approx(1.3 * SENSITIVITY_SLACK * 2**FRACTION_BITS, rel=1e-12)
    assert config.epsilon_after(2, 4) == pytest.approx(config.epsilon_after(2), rel=1e-9)
    assert config.epsilon_after(2, 0) < config.epsilon_after(2) < config.epsilon_after(2, 8)
    assert config.epsilon_after(2, 15) == math.inf


@given(n_agents=st.integers(2, 60), data=st.data())
def test_a_figure_is_finite_below_the_threshold_of_the_shares_alone(n_agents, data):
    """It grows with those who pool; of no rounds it is 0, or infinite: nothing is charged."""
    c = data.draw(st.integers(1, n_agents - 1))
    config = config_of(n_agents, z=2.0, colluding=c)
    told = [config.epsilon_after(2, n) for n in range(n_agents + 1)]
    least = (n_agents + c) // 2 + 1
    assert [math.isinf(epsilon) for epsilon in told] == [n >= least for n in range(n_agents + 1)]
    assert told == sorted(told)
    assert [config.epsilon_after(0, n) for n in (c, least - 1, least)] == [0.0, 0.0, math.inf]
    assert trusted(config).epsilon_after(2, 1) == math.inf  # the server sees the vectors


def _pooled(agents, u, few):
    """Agent u's key and seed from the shares that so many of the others hold."""
    attempts = [agent._attempt for agent in agents if agent._agent != u][:few]
    held = {a.agent: a._held(u) for a in attempts if a is not None}
    key, seed = (masking.joined({v: both[i] for v, both in held.items() if both}) for i in (0, 1))
    return key, seed


def test_as_many_as_open_the_shares_read_every_attempt_charged_or_not(clock):
    """What the figures are infinite from, and finite below: an attack on a round given up.

    Of nine agents two send no masked vector, so the sum is never opened, and nothing is charged.
    """
    V = vectors(9)
    server = server_of(config_of(9, z=1.0, min_present=8), deadline=10.0)
    agents = agents_of(server, V, dies={7: MASKED, 8: MASKED})
    go_on(agents)
    attempt = server.rounds.current
    victim, t = agents[0]._attempt, server.config.threshold
    key, seed = _pooled(agents, 0, t)
    purpose = f"privbo-masks/1 {attempt.name} 1"
    masks = masking.stream(seed, M)
    for v in set(attempt._sealed) - {0}:
        masks += masking.pair_mask(sealing.Meeting(key, attempt._public[v].s), 0, v, purpose, M)
    assert ((attempt._y[0] - masks).view(np.int64) == victim._x).all()
    with pytest.raises(ValueError, match="no shares of one secret"):
        _pooled(agents, 0, t - 1)
    clock.now += 11.0
    server.poll()
    assert server.rounds.current is None
    assert server.ledger() == []
    assert not any(asked["phase"] == OPEN for agent in agents for asked in _seen(agent))


def test_the_noise_of_a_sum_is_what_the_broadcast_says():
    """Chi-square of 60 x 4 numbers within its quantiles at 1e-9."""
    import scipy

    config = config_of(5, z=2.0, n_rounds=60)
    server, V = server_of(config), vectors(5)
    exact = sum_of(config_of(5), V, range(5)).weights
    squares = 0.0
    for _ in range(60):
        found = play(server, V)
        squares += float((((found.weights - exact) / found.noise[:, None]) ** 2).sum())
    low, high = scipy.stats.chi2.ppf([5e-10, 1 - 5e-10], 60 * M)
    assert low < squares < high
    z = 2.0 * math.sqrt(5 / (config.present - config.colluders))
    assert found.noise[0] == pytest.approx(z * 3.0 * SENSITIVITY_SLACK / 5, rel=1e-9)
    assert config.heard_multiplier == pytest.approx(z)


def excess(sigma, k):
    """tau: no probability of a sum of k shares differs from a Gaussian's by more than exp(tau)."""
    return 10.0 * sum(math.exp(-2.0 * math.pi**2 * sigma**2 * j / (j + 1)) for j in range(1, k))


def test_a_sum_of_discrete_gaussians_is_as_near_to_one_as_is_claimed():
    """By brute force where the bound is not nothing: all probabilities of sums of small ones."""
    for sigma, k in ((0.6, 2), (0.6, 3), (0.8, 4), (1.0, 6)):
        x = np.arange(-400, 401)

        def pmf(variance, x=x):
            weights = np.exp(-(x.astype(np.longdouble) ** 2) / (2 * variance))
            return weights / weights.sum()

        one = total = pmf(sigma**2)
        for _ in range(k - 1):
            total = np.convolve(total, one)[400:-400]
        whole = pmf(k * sigma**2)
        near = np.abs(x) <= 4 * sigma * math.sqrt(k)
        furthest = float(np.abs(np.log(total[near] / whole[near])).max())
        assert furthest <= excess(sigma, k)
        assert furthest > 0.0
    assert excess(2.0**20, 10_000) == 0.0


@pytest.mark.parametrize("scale", [3.0, 2.0**36])
def test_shares_are_discrete_gaussians_of_the_operating_system(scale):
    """Mean and variance of 4000 draws within six standard errors; no two calls agree."""
    drawn = SecureNoise().discrete_gaussian(4000, scale)
    assert drawn.dtype == np.int64
    assert drawn.shape == (4000,)
    assert abs(drawn.mean()) < 6 * scale / math.sqrt(4000)
    assert abs(drawn.var() / scale**2 - 1) < 6 * math.sqrt(2 / 4000)
    assert (drawn != SecureNoise().discrete_gaussian(4000, scale)).any()
    for bad in (0.0, -1.0, math.nan, math.inf, 2.0**56):
        with pytest.raises(ValueError, match="noise scale"):
            SecureNoise().discrete_gaussian(2, bad)


def test_test_noise_is_marked_for_ever():
    server = server_of(config_of(4, z=1.0), noise=InsecureNoise(0))
    assert play(server, vectors(4)) is not None
    assert not server.guarantee().protected

    other = mock.Mock(spec=["add_gaussian", "add_laplace", "flip", "integer"])
    with pytest.raises(ValueError, match="discrete_gaussian"):
        server_of(config_of(4, z=1.0), noise=other)


# Masks and shares of secrets --------------------------------------------------------------------


def test_a_key_stream_is_that_of_the_standard():
    """RFC 8439, appendix A.1, test vector 1: the key and the nonce are zero."""
    expected = bytes.fromhex(
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    assert masking.stream(bytes(32), 8).astype("<u8").tobytes() == expected


def test_masks_of_all_agents_cancel_but_for_their_own():
    keys = {n: Keys.new() for n in range(5)}
    public = {n: k.public for n, k in keys.items()}
    zero = np.zeros(3, dtype=np.uint64)
    total = zero.copy()
    for u, k in keys.items():
        others = {v: p for v, p in public.items() if v != u}
        total += masking.masked(zero, u, k, others, "round") - masking.stream(k.b, 3)
    assert (total == 0).all()


@given(
    secret=st.binary(min_size=32, max_size=32),
    t=st.integers(1, 7),
    more=st.integers(0, 4),
    data=st.data(),
)
def test_any_t_shares_give_a_secret_back(secret, t, more, data):
    agents = data.draw(
        st.lists(st.integers(0, 99), min_size=t + more, max_size=t + more, unique=True)
    )
    shares_of = masking.split(secret, t, agents)
    some = data.draw(st.permutations(agents))[:t]
    assert masking.joined({n: shares_of[n] for n in some}) == secret
    assert all(len(share) == masking.SHARE for share in shares_of.values())


def test_fewer_shares_fit_every_secret():
    """With t - 1 shares and any secret there is a share that fits: they say nothing of it."""
    shares_of = masking.split(bytes(range(32)), 3, [0, 1, 2])
    for other in (bytes(32), b"\xff" * 32):
        # The last share, for which the secret would be this one: Lagrange at agent 2's place.
        p, values = masking.PRIME, {0: int.from_bytes(other, "big")}
        values |= {n + 1: int.from_bytes(shares_of[n], "big") for n in (0, 1)}
        fits = 0
        for j, y in values.items():
            for m in values:
                if m != j:
                    y = y * (3 - m) * pow(j - m, -1, p) % p
            fits = (fits + y) % p
        third = fits.to_bytes(masking.SHARE, "big")
        assert masking.joined({0: shares_of[0], 1: shares_of[1], 2: third}) == other


# Settings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [*range(2, 40), 100, 1000])
def test_nobody_gets_enough_shares_of_both_secrets(n):
    """2t > N + c: who has t shares of one of them leaves fewer than t of the other."""
    for c in {1, max(1, n // 10), n // 3 or 1, n - 1}:
        config = config_of(n, colluding=c)
        t, T = config.threshold, config.present
        honest = n - c
        assert t <= T <= n
        assert T - c >= 1
        assert c < t  # who colludes opens nothing
        assert t - c > honest / 2  # of two groups of the others, one is too small


def test_a_plan_tells_what_it_costs_not_to_trust():
    plan = make_federation_plan(config_of(20, z=1.0, colluding=2, min_present=15))
    assert plan.widened == pytest.approx(math.sqrt(20 / 13))
    against = dict(plan.against)
    assert list(against) == [0, 2, 4, 6, 11, 12]
    assert against[2] == pytest.approx(plan.epsilon)
    assert math.isfinite(against[11])
    assert against[12] == math.inf
    assert "so many agents that pool what they know" in str(plan)
    assert "against 12 agents or more with the server nothing is protected" in str(plan)
    assert "11: " in str(plan)
    assert "12: inf" in str(plan)
    assert json.loads(json.dumps(plan.to_dict()))["against"][-1] == [12, "inf"]
    assert make_federation_plan(trusted(config_of(20, z=1.0))).against == ()


def test_the_guarantee_names_the_server_and_who_colludes():
    guarantee = server_of(config_of(6, z=1.0, colluding=2)).guarantee()
    text = guarantee.details()
    assert "Not protected: anything from a server that breaks the protocol" in text.replace(
        "\n", " "
    )
    assert "the server, which follows the protocol, together with any 2 of the other" in text
    assert "pool what they know with it, or add no noise" in text
    assert any("none once t of them pool" in limit for limit in guarantee.not_covered)
    assert "t=5" in text
    assert "a server that does not follow the protocol" in text
    assert "the server, which is trusted" not in text
    assert "X25519" in text
    assert guarantee.to_dict()["parameters"]["trust"] == "aggregate"
    assert guarantee.epsilon == server_of(trusted(config_of(6, z=1.0))).guarantee().epsilon


# Over the link ----------------------------------------------------------------------------------


@contextmanager
def listening(server):
    pytest.importorskip("grpc", reason="needs the federation extra")
    with closing(server):
        server.listen()
        yield [server.invitation(n) for n in range(server.config.n_agents)]


def test_agents_over_the_link_end_with_the_exact_sum():
    from privbo_plugins.federation import connect

    config, V, found = config_of(6), vectors(6), {}
    with listening(server_of(config)) as invitations:

        def act(n):
            link = connect(invitations[n], agreed=config)
            for _ in range(2):
                t = link.submit(V[n])
                assert t is not None
                got = link.collect(t)
                found[n, t] = got.weights.tobytes()
            link.close()

        assert in_threads(6, act) == []
    exact = sum_of(config, V, range(6)).weights.tobytes()
    assert found == {(n, t): exact for n in range(6) for t in (1, 2)}
