"""What second processes do in the tests of the engine; :mod:`tests.worker` begins them."""

import hashlib
import json
import os
import signal
import warnings
from pathlib import Path

import numpy as np

from privbo_plugins.algorithms.dp_fts_de import FederationConfig, make_model
from privbo_plugins.federation import FederatedServer, connect
from privbo_plugins.privacy.noise import SecureNoise
from privbo_plugins.sessions import broadcasts as ledger_module
from privbo_plugins.sessions.rows import Curator
from privbo_plugins.spaces import Float, Space
from privbo_plugins.store.transaction import Transaction
from tests import wires
from tests.worker import CONTEXT, PATIENCE, children

# Two that ask at the same time ------------------------------------------------------------------


def at_once(work, *jobs, folder):
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


def _take_part(work, job, barrier, file):
    warnings.simplefilter("error")
    work(*job, barrier.wait, lambda answer: file.write_text(json.dumps(answer)))


def release_table(url, seed, ready, answer):
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


def fingerprint(belief):
    """All bits of a belief."""
    parts = [belief.V, belief.L, *belief.gains]
    raw = b"".join(p.tobytes() for p in parts) + repr(belief.norms).encode()
    return hashlib.sha256(raw).hexdigest()


def believe(config, space, file):
    """Leaves the fingerprint of a belief that was made from descriptions."""
    model = make_model(FederationConfig.from_dict(config), Space.from_dict(space))
    Path(file).write_text(fingerprint(model.belief(3)))


# A server that dies -----------------------------------------------------------------------------


def crash(url, place, how):
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


DEATHS = {
    "drawn": (SecureNoise, "add_gaussian"),
    "stored": (Transaction, "release"),
    "committed": (ledger_module, "from_payload"),
}
"""After which call a server dies."""


def _that_ends(call, how):
    def last(*arguments):
        call(*arguments)
        _die(how)

    return last


def _die(how):
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(7)


# Agents and servers that fork -------------------------------------------------------------------

SENTINEL = 0.7234918273645519
"""A number whose text or bytes would not turn up by chance."""

SPACE = Space({"x": Float(0.0, 1.0), "y": Float(0.0, 1.0)})


def vector(length, seed):
    """What an agent sends in tests: the sentinel, then something of its own."""
    return np.append(SENTINEL, np.random.default_rng(seed).normal(size=length - 1))


def as_json(broadcast):
    """All bits of a broadcast."""
    if broadcast is None:
        return None
    return [broadcast.round, broadcast.weights.tolist(), broadcast.noise.tolist()]


def fork_an_agent(invitation, file):
    """Leaves the child's round, the broadcasts that its parent sees, and both numbers of channels.

    The child sends with the link that its parent has used.
    """
    warnings.filterwarnings("ignore", "This federation adds no noise|.*multi-threaded.*fork")
    with wires.dialled() as opened:
        link = connect(invitation)
        link.join(SPACE.to_dict())
        read, write = os.pipe()
        if os.fork() == 0:
            with open(write, "w") as out:
                t = link.submit(vector(link.config.message_length, 0))
                json.dump([t, len(opened)], out)
            os._exit(0)
        os.close(write)
        with open(read) as answer:
            child = json.load(answer)
        os.wait()
        Path(file).write_text(json.dumps([child, len(link.broadcasts()), len(opened)]))


def fork_a_server(config, secret, file):
    """Listens, and leaves its port and the number of a child that outlives this process."""
    warnings.filterwarnings("ignore", ".*multi-threaded.*fork")
    server = FederatedServer(FederationConfig(**config), space=SPACE)
    _, port = server.listen(secret=secret)
    child = os.fork()
    signal.alarm(int(PATIENCE))  # in case no test ends them
    if child:
        Path(f"{file}~").write_text(json.dumps([port, child]))
        os.rename(f"{file}~", file)
    while True:
        signal.pause()
