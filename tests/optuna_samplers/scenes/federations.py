"""What tests of federated studies share, and what they run in processes of their own.

Objectives, a link that writes down what passes it, a whole federation in one process, a server
and agents in processes of their own. Workers kill themselves at a named point of a round.
"""

import json
import logging
import os
import signal
import time
import warnings
from contextlib import contextmanager

import numpy as np
import optuna
import sqlalchemy as sa
from optuna.distributions import FloatDistribution

from optuna_samplers import DPFTSDESampler, FederatedServer, FederationConfig, run_federated
from privbo_plugins.algorithms.dp_fts_de import RoundSum
from privbo_plugins.errors import FederationError
from privbo_plugins.federation import connect
from privbo_plugins.spaces import Float, Space
from privbo_plugins.store.transaction import Transaction
from privbo_plugins.store.vault import Vault
from tests.inside import watch_draws
from tests.optuna_samplers.scenes.studies import database_at
from tests.worker import append

SQUARE = {"x": FloatDistribution(0, 1), "y": FloatDistribution(-2, 2)}
PLANE = Space({"x": Float(0.0, 1.0), "y": Float(-2.0, 2.0)})
"""The space of most tests."""

N_STARTUP = 2


def make_config(n_agents=3, **settings):
    """A small federation in the paper's mode: three agents and rounds, two start-up trials."""
    known = {"population": "explore", "n_rounds": 3, "n_startup": N_STARTUP}
    if settings.get("population") != "prior":
        known |= {"n_features": 20, "clipping_norm": 22.0}
    if "epsilon" not in settings:
        known["z"] = 2.0
    return FederationConfig(n_agents=n_agents, **(known | settings))


def bowl(n=0):
    """Agent n's objective, in [0, 1]; small is good."""

    def objective(trial):
        x, y = trial.suggest_float("x", 0, 1), trial.suggest_float("y", -2, 2)
        return float((x - 0.2 - 0.1 * n) ** 2 / 2 + (y / 4) ** 2)

    return objective


class Wrapper:
    """A link that passes everything on."""

    def __init__(self, link):
        self.link = link

    def __getattr__(self, name):
        return getattr(self.link, name)


class Recorder(Wrapper):
    """A link that remembers what was sent, to which round, and what came back."""

    def __init__(self, link):
        super().__init__(link)
        self.sent, self.received = [], {}

    def submit(self, message):
        t = self.link.submit(message)
        self.sent.append((t, np.array(message)))
        return t

    def collect(self, t):
        found = self.link.collect(t)
        if found is not None:
            self.received[found.round] = found.weights
        return found

    @property
    def rounds(self):
        """Rounds that this agent has sent to, in order."""
        return [t for t, _ in self.sent if t is not None]


# Facts of a vault -------------------------------------------------------------------------------


def rows(url, sql):
    """Rows of a database."""
    engine = sa.create_engine(url)
    try:
        with engine.connect() as connection:
            return [tuple(row) for row in connection.execute(sa.text(sql))]
    finally:
        engine.dispose()


def ledger(url):
    """Keys that were charged."""
    found = rows(url, "SELECT key FROM privbo_events WHERE kind = 'charge' ORDER BY key")
    return [key.removeprefix("broadcast/") for (key,) in found]


def releases(url):
    """Weights by round, as stored."""
    told = "SELECT key, payload FROM privbo_events WHERE kind = 'release' ORDER BY seq"
    found = [(key.removeprefix("broadcast/"), payload) for key, payload in rows(url, told)]
    assert len({key for key, _ in found}) == len(found)
    return {key: json.loads(payload)["weights"] for key, payload in found}


# Writing down, and dying ------------------------------------------------------------------------


class Death:
    """Kills this process at one point of one round."""

    def __init__(self, point, t):
        self.point, self.t = point, t

    def at(self, point, t):
        if point == self.point and int(t) == self.t:
            os.kill(os.getpid(), signal.SIGKILL)


class MortalLink(Wrapper):
    """Writes what it receives into a file, and dies before or after it has sent.

    Points: "before sending", "after sending", "after receiving". Rounds are counted by what this
    agent has seen released, so that a vector that is never sent has a number too.
    """

    def __init__(self, link, seen, death):
        super().__init__(link)
        self._seen, self._death = seen, death

    def submit(self, message):
        if self._death.point == "before sending":
            self._death.at("before sending", len(self.link.broadcasts()) + 1)
        t = self.link.submit(message)
        if t is not None:
            self._death.at("after sending", t)
        return t

    def collect(self, t):
        found = self.link.collect(t)
        if found is not None:
            append(self._seen, [self.agent, found.round, found.weights.tolist()])
            self._death.at("after receiving", found.round)
        return found


def install_in_server(death, draws):
    """Puts the points of a release into this process's server, and writes down its draws.

    Points: "after adding" (the round's first vector), "before charge", "after charge",
    "after draw", "before commit", "after commit".
    """
    add, charge, release = RoundSum.add, Transaction.charge, Transaction.release
    transaction = Vault.transaction
    now, released = [0], set[int]()

    def _add(total, n, w):
        add(total, n, w)
        death.at("after adding", total.t)

    def _charge(tx, charged):
        now[0] = int(charged.key)
        death.at("before charge", charged.key)
        charge(tx, charged)
        death.at("after charge", charged.key)

    def _draw(draw, value):
        noisy = draw(value)
        append(draws, [now[0], noisy])
        death.at("after draw", now[0])
        return noisy

    def _release(tx, kind, key, payload):
        text = release(tx, kind, key, payload)
        death.at("before commit", key)
        released.add(int(key))
        return text

    @contextmanager
    def _transaction(vault, run_id):
        with transaction(vault, run_id) as tx:
            yield tx
        while released:
            death.at("after commit", released.pop())

    RoundSum.add = _add
    Transaction.charge, Transaction.release = _charge, _release
    Vault.transaction = _transaction
    watch_draws(_draw)


def open_study(url, name, sampler):
    """The agent's study, which may exist."""
    return optuna.create_study(
        storage=database_at(url), study_name=name, sampler=sampler, load_if_exists=True
    )


# A whole federation in one process --------------------------------------------------------------


def drive(folder, vault, urls, n_rounds, point=None, t=2, who=1):
    """Runs a federation to its end, or until the point of round t is reached.

    Beside the points of a release, those of agent ``who``'s link, and "in the objective" of it.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    death = Death(point, t)
    install_in_server(death, folder / "draws")
    server = FederatedServer(make_config(len(urls)), vault=vault, deadline=20.0)
    studies, objectives = [], []
    for n, url in enumerate(urls):
        own = death if n == who else Death(None, 0)
        link = MortalLink(server.connect(n), folder / "seen", own)
        sampler = DPFTSDESampler(link, search_space=SQUARE, seed=n)
        studies.append(open_study(url, f"agent-{n}", sampler))
        objectives.append(_fatal(bowl(n), own))
    run_federated(studies, objectives, n_rounds=n_rounds)
    for study in studies:
        study.sampler.guarantee(study)


def _fatal(objective, death):
    def measured(trial):
        value = objective(trial)
        death.at("in the objective", trial.number - N_STARTUP + 1)
        return value

    return measured


# A server and agents in processes of their own --------------------------------------------------


def serve(folder, vault, n_agents, point=None, t=2):
    """Listens until the file ``stop`` appears; a round waits for an agent that has died."""
    install_in_server(Death(point, t), folder / "draws")
    server = FederatedServer(make_config(n_agents), vault=vault, deadline=4.0, space=PLANE)
    port = folder / "port"
    before = int(port.read_text()) if port.exists() else 0
    port.write_text(str(server.listen(("127.0.0.1", before), secret=folder / "secret")[1]))
    for n in range(n_agents):
        path = folder / f"invitation-{n}"
        beside = folder / f".invitation-{n}"
        beside.write_text(server.invitation(n))
        beside.rename(path)
    while not (folder / "stop").exists():
        time.sleep(0.02)
    server.close()


def serve_loudly(folder, vault, n_agents):
    """:func:`serve`, with all that its process says at DEBUG in files."""
    handler = logging.FileHandler(folder / "server.log")
    for name in ("", "sqlalchemy.engine", "sqlalchemy.pool", "privbo", "privbo_plugins"):
        logging.getLogger(name).setLevel(logging.DEBUG)
    logging.getLogger().addHandler(handler)
    streams = os.open(folder / "server.streams", os.O_CREAT | os.O_WRONLY, 0o600)
    os.dup2(streams, 1)
    os.dup2(streams, 2)
    logging.getLogger("privbo").debug("The server begins.")
    serve(folder, vault, n_agents)


def invited(path):
    """A link by the invitation in a file, once there is one."""
    end = time.monotonic() + 30
    while True:
        try:
            return connect(path.read_text())
        except (FileNotFoundError, FederationError):
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
