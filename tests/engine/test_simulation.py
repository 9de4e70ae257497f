"""Many agents in one process: that acting at once is what they would do one after the other."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from benchmarks.simulation import simulate
from privbo_plugins.algorithms.dp_fts_de import FederationConfig, Measure, RoundSum
from privbo_plugins.federation import FederatedServer
from privbo_plugins.models.random_features import posterior_sample, posterior_samples
from privbo_plugins.spaces import Categorical, Float, Int, Space

GRID = Space({"n": Int(1, 30), "kind": Categorical(("a", "b", "c"))})
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
                own = posterior_sample(some[i], y[i, :n], 0.1, np.random.default_rng(i))
                np.testing.assert_allclose(found[i], own, rtol=1e-9, atol=1e-12)


def test_vectors_of_all_agents_need_a_round_to_which_nobody_has_sent() -> None:
    server = FederatedServer(FederationConfig(2, z=1.0, population="explore", n_features=3))
    server.connect(0).submit(np.ones(3))
    with pytest.raises(ValueError, match="nobody has sent"):
        server._submit_all(np.ones((2, 3)))
