"""What second processes do in the tests of the engine; :mod:`tests.worker` begins them."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from privbo_plugins.algorithms.dp_fts_de import Broadcast, FederationConfig, make_model
from privbo_plugins.algorithms.dp_fts_de.population import Belief, PopulationModel
from privbo_plugins.federation import FederatedServer, Participant, RemoteLink, connect
from privbo_plugins.privacy.local import make_mechanism
from privbo_plugins.privacy.noise import InsecureNoise, SecureNoise
from privbo_plugins.sessions import broadcasts as ledger_module
from privbo_plugins.sessions.rewards import RewardSession
from privbo_plugins.sessions.rows import Curator
from privbo_plugins.spaces import Float, Space
from privbo_plugins.store.transaction import Transaction
from privbo_plugins.store.vault import open_vault
from tests import wires
from tests.worker import CONTEXT, PATIENCE, children

# Two that ask at the same time ------------------------------------------------------------------


def at_once(work: Callable[..., None], *jobs: tuple[Any, ...], folder: Path) -> list[Any]:
    """What processes answer that begin together, once all of them are there.

    Args:
        work: Gets a job's arguments, then ``ready``, which returns when all have called it, and
            ``answer``, which takes what goes through JSON.
        jobs: One a process.
        folder: For their answers.
    """
    barrier = CONTEXT.Barrier(len(jobs), timeout=PATIENCE)
    files = [folder / f"answer-{number}.json" for number in range(len(jobs))]
    told = [(work, job, barrier, file) for job, file in zip(jobs, files, strict=True)]
    assert children(_take_part, *told) == [0] * len(jobs)
    return [json.loads(file.read_text()) for file in files]


def _take_part(work: Callable[..., None], job: tuple[Any, ...], barrier: Any, file: Path) -> None:
    warnings.simplefilter("error")
    work(*job, barrier.wait, lambda answer: file.write_text(json.dumps(answer)))


def release_rewards(
    url: str, seed: int, ready: Callable[[], Any], answer: Callable[[Any], Any]
) -> None:
    """A curator's ten trials of one user, each seed with noise of its own."""
    mechanism = make_mechanism(0.5, value_range=(0.0, 1.9), mechanism="laplace")
    ready()
    noise = InsecureNoise(seed)
    curator = RewardSession(mechanism, open_vault(url), "study", noise=noise, user_budget=5.0)
    answer([curator.release(str(t), seed, "Jane", 0.0) for t in range(10)])


def release_table(
    url: str, seed: int, ready: Callable[[], Any], answer: Callable[[Any], Any]
) -> None:
    """A curator's table and the answers of its twelve rows; each seed has rows of its own."""
    X = np.random.default_rng(seed).uniform(size=(12, 3))
    ready()
    curator = Curator(
        X, epsilon=1.0, delta=1e-5, norm_bound=2.0, vault=url, outcomes=X[:, 0],
        outcome_epsilon=0.7, outcome_range=(0.0, 1.0),
    )  # fmt: skip
    digest = curator.release().manifest.digest
    answer([digest, [curator.evaluate(row) for row in range(12)]])


# One that believes ------------------------------------------------------------------------------


def fingerprint(belief: Belief) -> str:
    """All bits of a belief."""
    parts = [belief.V, belief.L, *belief.gains]
    raw = b"".join(p.tobytes() for p in parts) + repr(belief.norms).encode()
    return hashlib.sha256(raw).hexdigest()


def believe(config: dict[str, Any], space: dict[str, Any], file: str) -> None:
    """Leaves the fingerprint of a belief that was made from descriptions."""
    model = make_model(FederationConfig.from_dict(config), Space.from_dict(space))
    assert isinstance(model, PopulationModel)
    Path(file).write_text(fingerprint(model.belief(3)))


# A server that dies -----------------------------------------------------------------------------


def crash(url: str, place: str, how: str) -> None:
    """Releases one round of a federation and dies in the second one.

    Args:
        url: Its vault.
        place: "open" (before the last agent sends), "drawn" (right after the noise was),
            "stored" (inside the transaction) or "committed" (after it).
        how: "kill", or "exit" with code 7.
    """
    config = FederationConfig(
        n_agents=3, z=1.0, n_rounds=3, n_features=4, clipping_norm=22.0, population="explore"
    )
    server = FederatedServer(config, deadline=None, vault=url)
    links = [server.connect(n) for n in range(3)]
    for link in links:
        link.submit(np.ones(4))
    assert len(server.broadcasts()) == 1
    if place != "open":
        owner, name = DEATHS[place]
        setattr(owner, name, _that_ends(getattr(owner, name), how))
    for link in links[:2]:
        link.submit(np.ones(4))
    if place == "open":
        _die(how)
    links[2].submit(np.ones(4))


DEATHS: dict[str, tuple[Any, str]] = {
    "drawn": (SecureNoise, "add_gaussian"),
    "stored": (Transaction, "release"),
    "committed": (ledger_module, "from_payload"),
}
"""After which call a server dies."""


def _that_ends(call: Callable[..., Any], how: str) -> Callable[..., Any]:
    def last(*arguments: Any) -> None:
        call(*arguments)
        _die(how)

    return last


def _die(how: str) -> None:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(7)


# A federation's processes, told what to do ------------------------------------------------------

SENTINEL = 0.7234918273645519
"""A number whose text or bytes would not turn up by chance."""

SPACE = Space({"x": Float(0.0, 1.0), "y": Float(0.0, 1.0)})


def obey(role: str, calls: Connection, errors: str) -> None:
    """Answers calls of an agent's or a server's methods, both in JSON.

    Args:
        role: "agent" or "server".
        calls: Where they come from.
        errors: Name of a file that receives whatever is printed.
    """
    printed = os.open(errors, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    process: Any = AgentProcess() if role == "agent" else ServerProcess(calls)
    while True:
        try:
            method, arguments = json.loads(calls.recv_bytes())
        except EOFError:
            return
        try:
            answer = {"result": getattr(process, method)(*arguments)}
        except Exception as error:
            answer = {"error": [type(error).__name__, str(error)]}
        calls.send_bytes(json.dumps(answer).encode())


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

    def __init__(self) -> None:
        self._watch = ExitStack()  # as long as the process lives
        self._opened = self._watch.enter_context(wires.dialled())

    def connect(self, invitation: str) -> int:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This federation adds no noise")
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
        """The link in a child, which submits, and in its parent afterwards; how many channels."""
        read, write = os.pipe()
        if os.fork() == 0:
            with open(write, "w") as out:
                json.dump([self.submit(seed), len(self._opened)], out)
            os._exit(0)
        os.close(write)
        with open(read) as answer:
            child = json.load(answer)
        os.wait()
        return [child, len(self.broadcasts()), len(self._opened)]


class ServerProcess:
    """A server's process.

    Args:
        calls: Where it is told what to do.
    """

    server: FederatedServer

    def __init__(self, calls: Connection) -> None:
        self._calls = calls

    def listen(self, config: dict[str, Any], vault: str, address: Any, secret: str) -> Any:
        self.server = FederatedServer(FederationConfig(**config), vault=vault, space=SPACE)
        bound = self.server.listen(tuple(address), secret=secret)
        return bound, [self.server.invitation(n) for n in range(config["n_agents"])]

    def ledger(self) -> list[str]:
        return [charge.key for charge in self.server.ledger()]

    def fork(self) -> int:
        """A child that outlives this process, until it is killed; its number."""
        child = os.fork()
        if child == 0:
            self._calls.close()
            signal.alarm(int(PATIENCE))  # in case nobody does
            while True:
                signal.pause()
        return child

    def die_after_release(self) -> None:
        """Ends this process between the next release and its answer."""
        owner, name = DEATHS["committed"]
        setattr(owner, name, _that_ends(getattr(owner, name), "kill"))

    def close(self) -> None:
        self.server.close()
