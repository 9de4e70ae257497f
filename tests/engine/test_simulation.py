"""Many agents in one process: that acting at once is what they would do one after the other."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest

from benchmarks.simulation import simulate
from privbo_plugins.algorithms.dp_fts_de import (
    FederationConfig,
    Measure,
    RoundSum,
    explore,
    population,
)
from privbo_plugins.algorithms.dp_fts_de.agent import Agent, Streams, make_model
from privbo_plugins.algorithms.dp_fts_de.server import Broadcast
from privbo_plugins.algorithms.search import argmaxes
from privbo_plugins.federation import FederatedServer
from privbo_plugins.models.random_features import posterior_samples
from privbo_plugins.spaces import Categorical, Float, Int, Space

GRID = Space({"n": Int(1, 30), "kind": Categorical(("a", "b", "c"))})
CHOICES = Space({"a": Categorical(tuple("uvwxyz")), "b": Categorical(tuple("klmno"))})  # ties
LINE = Space({"x": Float(0.0, 1.0)})


def value(n: int, x: Any) -> float:
    return 0.5 + 0.4 * math.sin(5.0 * float(x[0]) + 0.01 * n)


@pytest.mark.parametrize("space", [GRID, LINE], ids=["grid", "line"])
@pytest.mark.parametrize(
    "settings",
    [
        {"population": "explore", "n_features": 30, "n_startup": 2, "n_regions": 2},
        {"population": "explore", "n_features": 3, "n_startup": 5},
        {"population": "prior"},
    ],
    ids=["explore", "few features", "prior"],
)
@pytest.mark.parametrize("maximize", [True, False])
def test_agents_at_once_do_what_they_do_one_after_the_other(
    space: Space, settings: dict[str, Any], maximize: bool
) -> None:
    """Without noise; sums are integers, vectors agree to rounding, so points are the same."""
    config = FederationConfig(9, z=0.0, n_rounds=2, **settings)
    servers = [FederatedServer(config, deadline=None) for _ in range(2)]
    ways: list[Any] = [None, lambda link: link]
    runs = [
        simulate(server, space, value, 4, seed=3, maximize=maximize, link=link)
        for server, link in zip(servers, ways, strict=True)
    ]
    np.testing.assert_allclose(runs[0].X, runs[1].X, rtol=0, atol=1e-6)
    if space is GRID:
        assert (runs[0].X == runs[1].X).all()
    for one, other in zip(*(server.broadcasts() for server in servers), strict=True):
        np.testing.assert_allclose(one.weights, other.weights, rtol=0, atol=1e-7)
    assert [len(server.broadcasts()) for server in servers] == [2, 2]


@pytest.mark.parametrize("strange", [False, True], ids=["on the grid", "one beside it"])
@pytest.mark.parametrize("told", [0, 2])
@pytest.mark.parametrize("space", [GRID, CHOICES, LINE], ids=["grid", "choices", "line"])
@pytest.mark.parametrize("name", ["explore", "prior"])
def test_many_agents_find_what_each_finds_alone(
    name: str,
    space: Space,
    told: int,
    strange: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Vectors to 1e-9 and the same points, in several pieces, with noisy broadcasts."""
    for module in (explore, population):
        monkeypatch.setattr(module, "_AT_ONCE", 1500)  # pieces of very few agents
    config = FederationConfig(23, z=1.0, n_rounds=5, population=name, n_startup=2)
    model, rng = make_model(config, space), np.random.default_rng(4)
    X = space.uniform_sets(23, 5, rng)
    X[3, 4] = X[3, 0]  # evaluated twice
    if strange:
        X[7, 2, 0] = 0.123456
    y = rng.random((23, 5))
    shape = config.n_regions, config.message_length
    heard = [
        Broadcast(t + 1, 0.05 * rng.standard_normal(shape), np.full(shape[0], 0.05))
        for t in range(told)
    ]
    agents = [Agent(model, n, seed=5) for n in range(23)]
    sending = Streams([partial(agent.rng_to_send, 4) for agent in agents])
    proposing = Streams([partial(agent.rng_to_propose, 4) for agent in agents])
    sent = model.messages(X, y, heard, sending)
    proposed = model.proposals(X, y, 4, heard, proposing)
    for n, agent in enumerate(agents):
        own = agent.message(X[n], y[n], 4, heard)
        np.testing.assert_allclose(sent[n], own, rtol=0, atol=1e-9)
        found = agent.propose(X[n], y[n], 4, heard)
        np.testing.assert_allclose(proposed[n], found, rtol=0, atol=1e-6 if space is LINE else 0)


def test_no_agent_evaluates_a_point_of_a_grid_again() -> None:
    """Each has seen all points but one, and proposes that."""
    model = make_model(FederationConfig(6, z=1.0), GRID)
    assert model.grid is not None
    left = np.array([0, 11, 40, 41, 88, 89])
    X = np.array([np.delete(model.grid, i, axis=0) for i in left])
    rngs = [np.random.default_rng(i) for i in range(6)]
    found = model.proposals(X, np.random.default_rng(0).random(X.shape[:2]), 1, (), rngs)
    assert (found == model.grid[left]).all()


def test_points_are_found_in_a_grid() -> None:
    model = make_model(FederationConfig(2, z=1.0), GRID)
    assert model.grid is not None
    assert (model.places(model.grid) == np.arange(len(model.grid))).all()
    near = model.grid[[5, 70]] + np.array([[1e-12, 0.0], [-1e-12, 0.0]])
    assert model.places(near[None]).tolist() == [[5, 70]]
    beside = np.array([[0.5, 0.0], [-0.1, 1.0], [1.1, 1.0], [0.0, 1.5], [0.0, 3.0]])
    assert (model.places(beside) == -1).all()
    assert (make_model(FederationConfig(2, z=1.0), LINE).places(near[:, :1]) == -1).all()


def test_streams_begin_anew_whenever_they_are_asked_for() -> None:
    makers = [partial(np.random.default_rng, i) for i in range(5)]
    streams = Streams(makers)
    assert len(streams) == 5
    expected = [make().random() for make in makers]
    assert [rng.random() for rng in streams] == expected
    assert [rng.random() for rng in streams[1:3]] == expected[1:3]
    assert streams[4].random() == streams[4].random() == expected[4]


def test_rows_with_one_maximum_ask_no_generator() -> None:
    def refuse() -> np.random.Generator:
        raise AssertionError("asked")

    values = np.array([[0.0, 2.0, 1.0], [3.0, 3.0 - 1e-13, 0.0], [0.0, 0.0, 1.0]])
    found = [
        argmaxes(values, Streams([refuse, partial(np.random.default_rng, i), refuse])).tolist()
        for i in range(20)
    ]
    assert {tuple(row) for row in found} == {(1, 0, 2), (1, 1, 2)}


def test_vectors_added_at_once_are_the_same_integers() -> None:
    config = FederationConfig(
        150, z=1.0, q=0.5, population="explore", n_features=7, n_regions=3, clipping_norm=2.0
    )
    rng = np.random.default_rng(0)
    W, coins = 3.0 * rng.standard_normal((150, 7)), (rng.random(150) < 0.5).tolist()
    W[5, 0], W[6] = math.nan, 0.0
    one, many = RoundSum(config, 2, coins), RoundSum(config, 2, coins)
    for n, w in enumerate(W):
        one.add(n, w)
    many.add_all(W)
    assert (one._total == many._total).all()
    assert (
        Measure(config, 2).part(4, W[4]) == Measure(config, 2).parts(np.array([4]), W[4:5])
    ).all()


def test_a_sample_of_many_agents_is_each_ones_own() -> None:
    rng = np.random.default_rng(1)
    Phi, y = rng.standard_normal((4, 6, 9)), rng.standard_normal((4, 6))
    for n in (6, 2):
        for M in (9, 4):
            some = Phi[:, :n, :M]
            found = posterior_samples(
                some, y[:, :n], 0.1, [np.random.default_rng(i) for i in range(4)]
            )
            for i in range(4):
                rng = np.random.default_rng(i)
                own = posterior_samples(some[i][None], y[i, :n][None], 0.1, [rng])[0]
                np.testing.assert_allclose(found[i], own, rtol=1e-9, atol=1e-12)


def test_vectors_of_all_agents_need_a_round_to_which_nobody_has_sent() -> None:
    server = FederatedServer(FederationConfig(2, z=1.0, population="explore", n_features=3))
    server.connect(0).submit(np.ones(3))
    with pytest.raises(ValueError, match="nobody has sent"):
        server._submit_all(np.ones((2, 3)))
