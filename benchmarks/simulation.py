"""Runs without hosts, for experiments: many agents in one process, and one run of DP-GIBO.

Algorithms, plans and statistics are the engine's own, but all agents' histories lie in this
process, or numpy draws the noise: that is no protection of anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.dp_gibo import DPGIBO
from privbo_plugins.algorithms.protocols import START, Query, Release
from privbo_plugins.federation.link import Link
from privbo_plugins.federation.participant import Participant
from privbo_plugins.privacy.mechanisms import gaussian_scale
from privbo_plugins.sessions.server import FederatedServer
from privbo_plugins.spaces import Space

Array = NDArray[np.float64]

Evaluate = Callable[[int, Array], float]
"""From an agent's number and a point (D,) to what the agent observes."""


@dataclass(frozen=True)
class Simulated:
    """What all agents did.

    Attributes:
        X: Points in order, shape (N, n_startup + n_rounds, D).
        y: What was observed there, shape (N, n_startup + n_rounds).
    """

    X: Array
    y: Array


def simulate(
    server: FederatedServer,
    space: Space,
    evaluate: Evaluate,
    n_rounds: int,
    *,
    maximize: bool = True,
    seed: int = 0,
    link: Callable[[Link], Link] = lambda own: own,
    after_round: Callable[[int], None] = lambda _number: None,
) -> Simulated:
    """Runs every agent of a server's roster, round by round.

    Memory is N (n_startup + n_rounds)(D + 1) numbers and what one agent's step takes.

    Args:
        server: A server of this process.
        space: What is tuned.
        evaluate: The agents' objectives.
        n_rounds: Rounds after the start-up points, >= 0.
        maximize: Whether large values are good.
        seed: Drives the agents' points and draws, never noise.
        link: Wraps every agent's link, for comparisons (a placebo's broadcasts).
        after_round: Called with the number of trials that every agent has done.

    Returns:
        All points and values.

    Example:
        >>> from privbo_plugins.algorithms.dp_fts_de import FederationConfig
        >>> from privbo_plugins.spaces import Float
        >>> config = FederationConfig(n_agents=3, epsilon=4.0, n_rounds=2, n_startup=4)
        >>> space = Space({"x": Float(0.0, 1.0)})
        >>> run = simulate(FederatedServer(config), space, lambda n, x: -abs(x[0] - 0.3), 5)
        >>> run.y.shape
        (3, 9)
    """
    N, total = server.config.n_agents, server.config.n_startup + n_rounds
    X, y = np.empty((N, total, len(space))), np.empty((N, total))
    agents = [
        Participant(link(server.connect(n)), space, maximize=maximize, seed=seed) for n in range(N)
    ]
    for number in range(total):
        for n, agent in enumerate(agents):
            agent.send(X[n, :number], y[n, :number], number)
        for n, agent in enumerate(agents):
            X[n, number] = agent.next_point(X[n, :number], y[n, :number], number)
        y[:, number] = [evaluate(n, x) for n, x in enumerate(X[:, number])]
        after_round(number + 1)
    return Simulated(X, y)


def followed(algorithm: DPGIBO, losses: Callable[[Array], Array], seed: int) -> Array:
    """The recommendation (D,) of a new run, whose noise numpy draws: it protects nothing.

    Args:
        algorithm: As it is made.
        losses: From points (m, D) to the losses of all records (n_records, m).
        seed: Drives the noise.
    """
    rng, values_rng = (np.random.default_rng([seed, stream]) for stream in (1, 5))
    while not algorithm.finished:
        role, step = algorithm.phase
        first = len(algorithm.state.starts) if role == START else 0
        # starts one after another: a search by values reads those before
        slots = range(first, first + 1 if role == START else algorithm.batch_capacity)
        points = [algorithm.propose(slot).x for slot in slots]
        trials, Y = [f"{step}/{slot}" for slot in slots], losses(np.array(points))
        for trial, x, y in zip(trials, points, Y.T, strict=True):
            query = algorithm.value_query(trial, role, step, x)
            if query is not None:
                own = rng if role == START else values_rng
                algorithm.observe(released(query, y[:, None], own))
        columns = dict(zip(trials, Y.T, strict=True))
        for query in algorithm.step_queries(trials, points) if role != START else ():
            Y = np.column_stack([columns[trial] for trial in query.trials])
            algorithm.observe(released(query, Y, rng))
    return algorithm.recommendation()


def released(query: Query, Y: Array, rng: np.random.Generator) -> Release:
    """What a query releases of the losses (n_records, m) of its trials, with numpy's noise."""
    exact = np.asarray(query.exact([Y]))
    noise = gaussian_scale(query.sensitivity, query.mu) * rng.standard_normal(exact.shape)
    return Release(query.kind, query.key, tuple(exact + noise + query.offset), query.meta)
