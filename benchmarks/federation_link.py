"""What the encrypted link of a federation costs: many agents over real sockets, one round.

    python -m benchmarks.federation_link [--agents 100 1000] [--write]

One process is the server, as ``privbo federation serve`` runs it; four others hold the agents, one
connection each. Times are of the slowest agent; memory is the server's.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

RESULTS = Path(__file__).parent / "results" / "federation_link.json"
PROCESSES = 4
CONTEXT = multiprocessing.get_context("spawn")


def serve(n_agents: int, calls: Any) -> None:
    """Listens until it is told to end; says invitations, then the most memory it has used."""
    from privbo_plugins.algorithms.dp_fts_de import FederationConfig
    from privbo_plugins.cli.federation import raise_file_limit
    from privbo_plugins.federation import FederatedServer
    from privbo_plugins.spaces import Float, Space

    raise_file_limit()
    config = FederationConfig(n_agents=n_agents, epsilon=1.0, delta=1e-5)
    server = FederatedServer(config, space=Space({"x": Float(0, 1)}), deadline=None)
    before = _megabytes()
    server.listen()
    calls.send([server.invitation(n) for n in range(n_agents)])
    calls.recv()
    calls.send((len(server.broadcasts()), before, _megabytes()))
    server.close()


def take_part(invitations: list[str], calls: Any) -> None:
    """Connects all agents, waits for a word, and runs one round with all of them."""
    from privbo_plugins.federation import connect

    with ThreadPoolExecutor(len(invitations)) as pool:
        began = time.perf_counter()
        links = list(pool.map(connect, invitations))
        calls.send(time.perf_counter() - began)
        calls.recv()
        began = time.perf_counter()
        found = list(pool.map(_round, links))
        calls.send((time.perf_counter() - began, len(set(found))))
        for link in links:
            link.close()


def _round(link: Any) -> bytes:
    t = link.submit(np.zeros(link.config.message_length))
    return bytes(link.collect(t).weights.tobytes())


def measured(n_agents: int) -> dict[str, Any]:
    """Seconds and megabytes of one round with n agents."""
    here, there = CONTEXT.Pipe()
    server = CONTEXT.Process(target=serve, args=(n_agents, there), daemon=True)
    server.start()
    invitations = here.recv()
    ways = [CONTEXT.Pipe() for _ in range(PROCESSES)]
    hosts = [
        CONTEXT.Process(target=take_part, args=(invitations[k::PROCESSES], way[1]), daemon=True)
        for k, way in enumerate(ways)
    ]
    for host in hosts:
        host.start()
    connected = [way[0].recv() for way in ways]
    for way in ways:
        way[0].send("go")
    ended = [way[0].recv() for way in ways]
    here.send("end")
    released, before, after = here.recv()
    for process in [*hosts, server]:
        process.join()
    if released != 1 or any(seen != 1 for _, seen in ended):
        raise RuntimeError(f"{released} rounds, seen in several forms: {ended}")
    return {
        "agents": n_agents,
        "connect_seconds": round(max(connected), 2),
        "round_seconds": round(max(seconds for seconds, _ in ended), 2),
        "server_mb_idle": round(before),
        "server_mb_most": round(after),
    }


def _megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Measures and tells."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--agents", nargs="+", type=int, default=[10, 100, 1000])
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    rows = []
    for n_agents in tqdm(given.agents):
        rows.append(measured(n_agents))
        tqdm.write(json.dumps(rows[-1]))
    if given.write:
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
