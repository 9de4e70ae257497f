"""A process of a federation, told what to do by lines of JSON; see ``test_federation_wire.py``.

``python federation_worker.py agent`` or ``... server``. Each line on standard input is a call of a
method below, each line on standard output its answer.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from privbo_plugins.algorithms.dp_fts_de import Broadcast, FederationConfig
from privbo_plugins.federation import FederatedServer, Participant, RemoteLink, connect
from privbo_plugins.spaces import Float, Space

SENTINEL = 0.7234918273645519
"""A number whose text or bytes would not turn up by chance."""

SPACE = Space({"x": Float(0.0, 1.0), "y": Float(0.0, 1.0)})


def vector(length: int, seed: int) -> np.ndarray:
    """What an agent sends in tests: the sentinel, then something of its own."""
    return np.append(SENTINEL, np.random.default_rng(seed).normal(size=length - 1))


def as_json(broadcast: Broadcast | None) -> Any:
    """All bits of a broadcast."""
    if broadcast is None:
        return None
    return [broadcast.round, broadcast.weights.tolist(), broadcast.noise.tolist()]


class AgentProcess:
    """An agent's process."""

    link: RemoteLink

    def connect(self, invitation: str) -> int:
        self.link = connect(invitation)
        return self.link.agent

    def join(self) -> None:
        self.link.join(SPACE.to_dict())

    def submit(self, seed: int) -> int | None:
        return self.link.submit(vector(self.link.config.message_length, seed))

    def collect(self, t: int) -> Any:
        return as_json(self.link.collect(t))

    def broadcasts(self) -> Any:
        return [as_json(b) for b in self.link.broadcasts()]

    def leave(self) -> None:
        self.link.leave()

    def participate(self, n_rounds: int) -> Any:
        """Whole trials, as a sampler has them; what was received after each round."""
        participant = Participant(self.link, SPACE, maximize=True, seed=3)
        X: list[np.ndarray] = []
        values: list[float] = []
        received: list[Any] = []
        for number in range(participant.n_startup + n_rounds):
            points, known = np.array(X).reshape(-1, 2), np.array(values)
            x = participant.next_point(points, known, number)
            X.append(x)
            values.append(float(1 - ((x - 0.1 * self.link.agent) ** 2).sum()))
            if number >= participant.n_startup:
                received.append(as_json(self.link.broadcasts()[-1]))
        return received

    def fork(self, seed: int) -> Any:
        """The link in a child, which submits, and in its parent afterwards; their ports."""
        read, write = os.pipe()
        if os.fork() == 0:
            with open(write, "w") as out:
                json.dump([self.submit(seed), self.port()], out)
            os._exit(0)
        os.close(write)
        with open(read) as answer:
            child = json.load(answer)
        os.wait()
        return [child, len(self.broadcasts()), self.port()]

    def port(self) -> int:
        return int(self.link._idle[0].getsockname()[1])


class ServerProcess:
    """A server's process."""

    server: FederatedServer

    def listen(self, config: dict[str, Any], vault: str, address: Any, secret: str) -> Any:
        self.server = FederatedServer(FederationConfig(**config), vault=vault)
        where = tuple(address) if isinstance(address, list) else address
        bound = self.server.listen(where, secret=secret)
        return bound, [self.server.invitation(n) for n in range(config["n_agents"])]

    def ledger(self) -> list[str]:
        return [charge.key for charge in self.server.ledger()]

    def fork(self) -> int:
        """A child that outlives this process; its number."""
        child = os.fork()
        if child == 0:
            os.close(0)
            os.close(1)
            os.close(2)
            time.sleep(60)
            os._exit(0)
        return child

    def die_after_release(self) -> None:
        """Ends this process between the next release and its answer."""
        release = self.server._release

        def last(*arguments: Any) -> Any:
            release(*arguments)
            os.kill(os.getpid(), signal.SIGKILL)

        self.server._release = last  # type: ignore[assignment, method-assign]

    def close(self) -> None:
        self.server.close()


def main() -> None:
    process: Any = AgentProcess() if sys.argv[1] == "agent" else ServerProcess()
    for line in sys.stdin:
        method, arguments = json.loads(line)
        try:
            answer = {"result": getattr(process, method)(*arguments)}
        except Exception as error:
            answer = {"error": [type(error).__name__, str(error)]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
