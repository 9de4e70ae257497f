"""How long a round takes where one process simulates many agents, and how much memory.

    python -m benchmarks.federation_scale [--agents 100 1000 10000] [--rounds 10] [--write]

Both populations, on a grid of 900 points and on a square. Each case has a process of its own
(run it with OMP_NUM_THREADS=1, on one core). Seconds are of the processor, so that other work on
the machine weighs less on them; those of the clock stand beside them. Evaluating the objective is
in both. On the square agents take their steps one after the other, so at most 1000 are run there.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from benchmarks.simulation import simulate
from privbo_plugins.algorithms.dp_fts_de import FederationConfig
from privbo_plugins.federation import FederatedServer
from privbo_plugins.spaces import Float, Int, Space

RESULTS = Path(__file__).parent / "results" / "federation_scale.json"
SPACES = {
    "grid": Space({"x": Int(1, 30), "y": Int(1, 30)}),
    "square": Space({"x": Float(0.0, 1.0), "y": Float(0.0, 1.0)}),
}
MOST = {"grid": 10**9, "square": 1000}
"""Agents that are run at most."""

HEADER = "| population | space | agents | points | seconds a round | slowest | by the clock | MB |"


def value(n: int, x: NDArray[np.float64]) -> float:
    """Agents' objectives: hills at slightly different places."""
    return 0.9 - abs(float(x[0]) - 0.3 - 0.1 * math.sin(n)) - 0.3 * abs(float(x[1]) - 0.6)


def settings(population: str, n_agents: int, rounds: int) -> FederationConfig:
    """The default, or the published settings."""
    if population == "explore":
        return FederationConfig.paper(n_agents, n_rounds=rounds)
    return FederationConfig(n_agents, epsilon=1.0, delta=1e-6, n_rounds=rounds)


def measured(case: tuple[str, str, int, int]) -> dict[str, Any]:
    """Seconds and megabytes of a case: population, space, agents, rounds."""
    population, space, n_agents, rounds = case
    config = settings(population, n_agents, rounds)
    server = FederatedServer(config, space=SPACES[space], deadline=None)
    times: list[tuple[float, float]] = []

    def note(_number: int) -> None:
        times.append((time.process_time(), time.perf_counter()))

    simulate(server, SPACES[space], value, rounds, after_round=note)
    each = np.diff(times[config.n_startup - 1 :], axis=0)  # start points are no rounds
    return {
        "population": population,
        "space": space,
        "agents": n_agents,
        "points": [config.n_startup, config.n_startup + rounds - 1],
        "seconds": round(float(each[:, 0].mean()), 3),
        "slowest": round(float(each[:, 0].max()), 3),
        "clock": round(float(each[:, 1].mean()), 3),
        "mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def row(found: dict[str, Any]) -> str:
    """A line of the table."""
    first, last = found["points"]
    cells = [found["population"], found["space"], f"{found['agents']:,}".replace(",", " ")]
    cells += [f"{first} to {last}", *(f"{found[k]:.2f}" for k in ("seconds", "slowest", "clock"))]
    return "| " + " | ".join([*cells, str(found["mb"])]) + " |"


def main() -> None:
    """Measures and tells."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--agents", nargs="+", type=int, default=[100, 1000, 10_000])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    cases = [
        (population, space, n_agents, given.rounds)
        for population in ("prior", "explore")
        for space in SPACES
        for n_agents in given.agents
        if n_agents <= MOST[space]
    ]
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        rows = list(tqdm(pool.imap(measured, cases, chunksize=1), total=len(cases)))
    print("\n".join([HEADER, "|---|---|---|---|---|---|---|---|", *map(row, rows)]))
    if given.write:
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
