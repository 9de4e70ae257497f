"""What an agent sends and where it goes, against straightforward reimplementations.

Everything is seeded, so nothing is random; bounds are five standard deviations of what they bound,
unless a test says more.
"""

import itertools
import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privbo_plugins.algorithms.dp_fts_de import (
    Agent,
    Broadcast,
    FederationConfig,
    Regions,
    make_model,
)
from privbo_plugins.algorithms.dp_fts_de.explore import FeatureModel
from privbo_plugins.errors import FederationError
from privbo_plugins.federation import FederatedServer, Participant
from privbo_plugins.spaces import Categorical, Float, Int, Space

from .helpers import cube
from .oracles import points_of

ALONE = 10**6
"""A round at which an agent relies on itself: the chance not to is one in a million."""


def config_of(**changed):
    settings = {"n_agents": 8, "z": 0.0, "n_features": 12, "noise_variance": 0.1}
    published = {
        "population": "explore",
        "clipping_norm": 22.0,
        "n_rounds": 10,
        "lengthscale": 0.2,
    }
    return FederationConfig(**{**settings, **published, **changed})


def model_of(space=None, **changed):
    model = make_model(config_of(**changed), cube(2) if space is None else space)
    assert isinstance(model, FeatureModel)
    return model


def phi(model, X):
    """Unit-length Fourier features of the public seed, written out."""
    config, Z = model.config, model.space.embed(X)
    rng = np.random.default_rng(0)
    s = rng.standard_normal((config.n_features, Z.shape[1])) / config.lengthscale
    c = np.cos(Z @ s.T + rng.uniform(0, 2 * math.pi, config.n_features))
    return np.asarray(c / np.linalg.norm(c, axis=1, keepdims=True))


def history(model, n, seed=0):
    rng = np.random.default_rng(seed)
    low, high = model.config.value_range
    return model.space.uniform(n, rng), rng.uniform(low, high, n)


def posterior(model, X, y):
    """Mean and precision Sigma / s2 of the weights (equation 2)."""
    Phi, s2 = phi(model, X), model.config.noise_variance
    S = Phi.T @ Phi + s2 * np.eye(Phi.shape[1])
    return np.linalg.solve(S, Phi.T @ y), S / s2


def broadcast_of(weights, t=1):
    W = np.atleast_2d(np.asarray(weights, dtype=float))
    return Broadcast(t, W, np.zeros(len(W)))


def scores(model, X, W):
    """phi(x)ᵀ w^(i[x])."""
    region = Regions(model.space, model.config.n_regions).index(X)
    rows = W[region] if len(W) > 1 else np.repeat(W, len(X), 0)
    return np.asarray((phi(model, X) * rows).sum(1))


GRID = Space(
    {"a": Int(0, 9), "b": Float(1.0, 100.0, log=True, step=10.0), "c": Categorical("xyz")}
)


# What it sends --------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "maximize"), [(0, True), (3, False), (12, True), (40, False)])
def test_messages_are_draws_from_the_posterior(n, maximize):
    """1500 rounds, made independent N(0, I) by the dense mean and covariance."""
    model = model_of(value_range=(-2.0, 6.0))
    X, values = history(model, n)
    y = (values + 2) / 8
    agent = Agent(model, 3, maximize=maximize, seed=1)
    w = np.array([agent.message(X, values, t) for t in range(1, 1501)])
    mean, precision = posterior(model, X, y if maximize else 1 - y)
    white = (w - mean) @ np.linalg.cholesky(precision)
    assert np.abs(white.mean(0)).max() < 5 / math.sqrt(1500)
    assert np.abs(white.T @ white / 1500 - np.eye(12)).max() < 5 * math.sqrt(2 / 1500)


def test_what_an_agent_does_alone_is_not_what_it_sends():
    """Its own draw and its message are different ones, and neither tells the other."""
    model = model_of(GRID)
    X, values = history(model, 5)
    agent, points = Agent(model, 0), points_of(GRID)
    best = [
        (
            points[np.argmax(phi(model, points) @ agent.message(X, values, t))].tolist(),
            agent.propose(X, values, t, []).tolist(),
        )
        for t in range(1, 60)
    ]
    assert sum(sent == gone for sent, gone in best) < 30


# Values ---------------------------------------------------------------------------------------


@given(
    values=st.lists(st.floats(allow_nan=False), min_size=1, max_size=8),
    low=st.floats(-1e6, 1e6),
    width=st.floats(1e-3, 1e6),
    maximize=st.booleans(),
)
def test_values_are_clipped_to_the_public_range(values, low, width, maximize):
    model = model_of(value_range=(low, low + width))
    y = Agent(model, 0, maximize=maximize).units(np.array(values))
    assert ((y >= 0) & (y <= 1)).all()
    best = max(values) if maximize else min(values)
    assert y[values.index(best)] == y.max()
    if best <= low:
        assert y.max() == (0 if maximize else 1)


@pytest.mark.parametrize("maximize", [True, False])
def test_a_value_that_is_no_number_is_the_worst(maximize):
    model = model_of()
    agent = Agent(model, 0, maximize=maximize)
    assert agent.units(np.array([math.nan, 0.5])).tolist() == [0.0, 0.5]
    X, _ = history(model, 2)
    assert np.isfinite(agent.message(X, np.array([math.nan, 0.5]), 1)).all()


# Where it goes --------------------------------------------------------------------------------


@pytest.mark.parametrize("P", [1, 2, 6])
def test_the_first_round_follows_the_broadcast(P):
    """p_1 = 0, whatever the agent has seen; only the last broadcast counts."""
    model = model_of(GRID, n_regions=P)
    X, values = history(model, 4)
    rng, points = np.random.default_rng(P), points_of(GRID)
    for number in range(8):
        W = rng.standard_normal((P, 12))
        received = [broadcast_of(rng.standard_normal((P, 12))), broadcast_of(W, 2)]
        x = Agent(model, number, seed=number).propose(X, values, 1, received)
        np.testing.assert_allclose(x, points[np.argmax(scores(model, points, W))], atol=1e-12)


def test_without_a_broadcast_it_relies_on_itself():
    """The points of Thompson sampling: frequencies of 800 draws of each kind over 12 points."""
    space = Space({"a": Int(0, 11)})
    model = model_of(space, lengthscale=0.3)
    X, values = history(model, 5, seed=3)
    points = points_of(space)
    agent, R = Agent(model, 1), 800
    mean, precision = posterior(model, X, values)
    rng = np.random.default_rng(0)
    factor = np.linalg.inv(np.linalg.cholesky(precision))
    W = mean + rng.standard_normal((R, 12)) @ factor
    expected = np.bincount((W @ phi(model, points).T).argmax(1), minlength=12) / R
    first = [agent.propose(X, values, t, []) for t in range(1, R + 1)]
    lure = [broadcast_of(1e6 * phi(model, points[:1]))]
    late = [agent.propose(X, values, ALONE + t, lure) for t in range(R)]
    for gone in (first, late):
        found = np.bincount([round(float(x[0]) * 11) for x in gone], minlength=12) / R
        assert np.abs(found - expected).max() < 5 * math.sqrt(0.5 / R)


@pytest.mark.parametrize(("t", "power"), [(2, 1), (4, 1), (2, 2), (3, 2)])
def test_the_chance_to_rely_on_itself(t, power):
    """600 seeds; the agent alone goes where the broadcast leads in one of ten cases at most."""
    space = Space({"a": Int(0, 11)})
    model = model_of(space, lengthscale=0.1, noise_variance=1e-3, power=power)
    points = points_of(space)
    X, values = points, np.where(np.arange(12) == 9, 1.0, 0.0)  # alone: to the tenth point
    lure = [broadcast_of(phi(model, points[:1]))]
    chance, alone, led = 1 - 1 / t**power, 0, 0
    for seed in range(600):
        x = Agent(model, 0, seed=seed).propose(X, values, t, lure)
        alone += math.isclose(float(x[0]), 9 / 11)
        led += float(x[0]) == 0.0
    assert alone + led > 590
    assert abs(alone / 600 - chance) < 5 * math.sqrt(chance * (1 - chance) / 600)


def test_a_start_point_lies_in_the_agents_region():
    space = Space({"a": Float(0, 1), "b": Float(1, 100, log=True), "c": Categorical("xyz")})
    model = model_of(space, n_regions=4)
    regions = Regions(space, 4)
    seen = set()
    for number in range(8):
        agent = Agent(model, number)
        X = np.array([agent.start_point(i) for i in range(20)])
        assert (regions.index(X) == number % 4).all()
        again = Agent(model, number).start_point(7)
        assert again.tobytes() == X[7].tobytes()
        seen |= {x.tobytes() for x in X}
    assert len(seen) == 160


# The search for the best point ----------------------------------------------------------------


@pytest.mark.parametrize("P", [1, 2, 5])
@pytest.mark.parametrize(
    "space",
    [
        GRID,
        Space({"a": Int(0, 999)}),
        Space({"a": Float(0.0, 1.0, step=0.25), "b": Int(1, 64, log=True)}),
        Space({"a": Categorical("xy"), "b": Int(3, 7, step=2), "c": Float(2.0, 2.0)}),
    ],
    ids=["mixed", "line", "numbers", "constant"],
)
def test_a_small_grid_is_searched_through(space, P):
    model = model_of(space, n_regions=P)
    points = np.array([space.snap(x) for x in points_of(space)])
    for seed in range(20):
        W = np.random.default_rng(seed).standard_normal((P, 12))
        x = model.argmax(W, np.random.default_rng(seed))
        best = scores(model, points, W).max()
        assert scores(model, x[None], W)[0] == pytest.approx(best, abs=1e-12)
        np.testing.assert_array_equal(space.snap(x), x)


def in_closures(model, x, W):
    """The best of phi(x)ᵀ w^(p) over the regions that x touches: a limit from within."""
    regions = Regions(model.space, model.config.n_regions)
    touched = ((x >= regions.lower - 1e-9) & (x <= regions.upper + 1e-9)).all(1)
    return float((phi(model, x[None]) @ W[touched].T).max())


@pytest.mark.parametrize("P", [1, 2, 4])
@pytest.mark.parametrize("d", [1, 2])
def test_on_a_box_it_is_as_good_as_a_dense_grid(d, P):
    model = model_of(cube(d), n_regions=P, n_features=40, lengthscale=0.25)
    axis = np.linspace(0, 1, 2001 if d == 1 else 81)
    dense = np.array(list(itertools.product(axis, repeat=d)))
    for seed in range(10):
        W = np.random.default_rng(seed).standard_normal((P, 40))
        x = model.argmax(W, np.random.default_rng(seed))
        assert ((x >= 0) & (x <= 1)).all()
        assert in_closures(model, x, W) >= scores(model, dense, W).max() - 1e-6


def test_on_a_large_grid_a_climb_ends_in_its_region():
    """What the host evaluates must be scored by the weights of the region it lies in."""
    space = Space({"a": Float(0.0, 1.0, step=0.1), "b": Float(0.0, 1.0)})
    model = model_of(space, n_regions=2, n_features=40)
    worse = 0
    for seed in range(40):
        W = np.random.default_rng(seed).standard_normal((2, 40))
        x = model.argmax(W, np.random.default_rng(seed))
        candidates = space.uniform(1000, np.random.default_rng(seed))
        worse += bool(scores(model, x[None], W)[0] < scores(model, candidates, W).max() - 1e-9)
    assert worse == 0


# A participant ----------------------------------------------------------------------------------


def drive(participant, n):
    """The first n trials, which observe how far off the centre they are."""
    X = []
    for number in range(n):
        values = np.array([1 - np.abs(x - 0.5).max() for x in X])
        X.append(participant.next_point(np.array(X), values, number))
    return np.array(X)


def test_a_participant_sends_once_a_trial_after_its_start():
    config = config_of(n_agents=1, n_startup=3, n_rounds=2)
    server = FederatedServer(config, deadline=None)
    participant = Participant(server.connect(0), cube(2), maximize=True, seed=4)
    assert participant.n_startup == 3
    drive(participant, 3)
    assert server.broadcasts() == []
    X = drive(participant, 4)
    assert len(server.broadcasts()) == 1
    y = np.array([1 - np.abs(x - 0.5).max() for x in X[:3]])
    agent = Agent(make_model(config, cube(2)), 0, seed=4)
    np.testing.assert_array_equal(X[:3], [agent.start_point(i) for i in range(3)])
    sent = agent.message(X[:3], y, 1)
    first = server.broadcasts()[:1]
    np.testing.assert_allclose(first[0].weights[0], sent, rtol=1e-8, atol=1e-8)
    np.testing.assert_array_equal(X[3], agent.propose(X[:3], y, 1, first))


def test_a_participant_whose_server_fails_warns_and_goes_on(monkeypatch):
    server = FederatedServer(config_of(n_agents=1, n_startup=1, n_rounds=5), deadline=None)
    participant = Participant(server.connect(0), cube(1), maximize=True, seed=0)
    drive(participant, 2)

    def unreachable(*_):
        raise FederationError("no route to the server")

    monkeypatch.setattr(server.rounds, "submit", unreachable)
    X, y = np.array([[0.2], [0.4]]), np.array([0.1, 0.2])
    with pytest.warns(UserWarning, match="goes on alone: no route"):
        alone = participant.next_point(X, y, 2)
    expected = participant.agent.propose(X, y, 2, server.broadcasts())
    np.testing.assert_array_equal(alone, expected)
    monkeypatch.undo()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        participant.next_point(np.vstack([X, alone]), np.array([0.1, 0.2, 0.3]), 3)
    assert len(server.broadcasts()) == 2
