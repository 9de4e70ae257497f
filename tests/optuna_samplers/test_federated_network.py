"""A federation on a bad line: machines of their own, lost packets, pulled cables, deaths."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from privbo_plugins.sessions.broadcasts import broadcasts_of
from privbo_plugins.sessions.stored import run_named
from privbo_plugins.store.run import Run
from privbo_plugins.store.vault import open_vault
from tests import networks

_MISSING = networks.missing()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(_MISSING), reason=_MISSING or "-")]
ROOT = Path(__file__).parents[2]
PATIENCE = 120.0
ROUNDS = 5
AGENT = """
import json, sys, time
import optuna
from optuna_samplers import DPFTSDESampler
from privbo_plugins.errors import FederationError
from privbo_plugins.federation import RemoteLink, connect

folder, number = sys.argv[1], sys.argv[2]
optuna.logging.set_verbosity(optuna.logging.ERROR)
submit = RemoteLink.submit

def noted(link, message):
    with open(f"{folder}/sent-{number}", "a") as file:
        file.write(json.dumps(message.tolist()) + "\\n")
    t = submit(link, message)
    with open(f"{folder}/told-{number}", "a") as file:
        file.write(f"{t}\\n")
    return t

RemoteLink.submit = noted
link = connect("env:INVITATION")
study = optuna.create_study(
    study_name="own", storage=f"sqlite:///{folder}/study-{number}.db", load_if_exists=True,
    direction="maximize", sampler=DPFTSDESampler(link, seed=int(number)),
)
def released():
    while True:
        try:
            return link.broadcasts()
        except FederationError:  # it is away
            time.sleep(0.5)

def spent():
    while True:
        try:
            return link.guarantee().n_released  # with those that were paid for and lost
        except FederationError:
            time.sleep(0.5)

while spent() < link.config.n_rounds:
    study.optimize(lambda trial: -(trial.suggest_float("x", 0, 1) - 0.3) ** 2, n_trials=1)
print(json.dumps([[b.round, b.weights.tolist()] for b in released()]))
"""


class Federation:
    """A server on machine 1, and agents on machines 2 and 3."""

    def __init__(self, folder, network, trust):
        self.folder, self.network, self.trust = folder, network, trust
        self.vault = f"sqlite:///{folder}/server.db"
        self.environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        self._started = []

    def serve(self):
        address, deadline = f"{networks.address(1)}:7000", 60 if self.trust == "server" else 10
        server = self._start(
            1, sys.executable, "-m", "privbo_plugins", "federation", "serve", "--agents", 2,
            "--set", "z=0", "q=1", "--rounds", ROUNDS, "--space", "x:0:1", "--vault", self.vault,
            "--secret", self.folder / "key", "--listen", address, "--deadline", deadline,
            "--trust", self.trust,
            "--invitations", self.folder / "in", "--set", "population=explore", "n_regions=1",
            "clipping_norm=1000", "n_startup=2",
        )  # fmt: skip
        assert server.stdout is not None
        assert server.stdout.readline().startswith(f"Listening on {address}.")
        return server

    def take_part(self, agent):
        invitation = (self.folder / "in" / f"agent-{agent}.invitation").read_text()
        program = (sys.executable, "-c", AGENT, self.folder, agent)
        return self._start(agent + 2, *program, INVITATION=invitation)

    def _start(self, machine, *words, **more):
        errors = (self.folder / "errors").open("a")
        started = subprocess.Popen(
            self.network.command(machine, *words), cwd=self.folder, text=True,
            stdout=subprocess.PIPE, stderr=errors, env=self.environment | more,
        )  # fmt: skip
        errors.close()
        self._started.append(started)
        return started

    def end(self):
        for process in self._started:
            process.kill()
            process.communicate()

    def released(self):
        """What the vault holds, whoever writes there meanwhile."""
        with self._run() as run:
            return broadcasts_of(run)

    def charged(self):
        """The rounds that were paid for."""
        with self._run() as run, run.transaction() as tx:
            return [charge.key for charge in tx.charges()]

    @contextmanager
    def _run(self):
        vault = open_vault(self.vault)
        try:
            found = run_named(vault, "federation")
            yield Run(vault, found.run_id, found.settings, begun_here=False)
        finally:
            vault.close()

    def until(self, n_released):
        end = time.monotonic() + PATIENCE
        while len(self.released()) < n_released:
            assert time.monotonic() < end, (self.folder / "errors").read_text()[-2000:]
            time.sleep(0.1)

    def sent(self, agent):
        lines = (self.folder / f"sent-{agent}").read_text().splitlines()
        return [np.array(json.loads(line)) for line in lines]


@pytest.fixture(params=[pytest.param("server", marks=pytest.mark.soak), "aggregate"])
def federation(request, tmp_path):
    with networks.Network(3, delay=0.05, loss=0.05) as network:  # 100 ms there and back
        made = Federation(tmp_path, network, request.param)
        try:
            yield made
        finally:
            made.end()
            print((tmp_path / "errors").read_text()[-5000:])


def test_a_federation_survives_a_bad_line_and_deaths(federation):
    network, server = federation.network, federation.serve()
    agents = [federation.take_part(n) for n in (0, 1)]
    federation.until(1)
    network.pull(3)  # in the middle of a round, or just before one
    time.sleep(5)
    network.plug(3)
    federation.until(2)
    server.send_signal(signal.SIGKILL)
    server.wait()
    server = federation.serve()
    federation.until(3)
    agents[0].send_signal(signal.SIGKILL)
    agents[0].wait()
    agents[0] = federation.take_part(0)
    ended = [json.loads(agent.communicate(timeout=PATIENCE)[0]) for agent in agents]
    released = [[b.round, b.weights.tolist()] for b in federation.released()]
    assert [t for t, _ in released] == list(range(1, len(released) + 1))
    assert ended == [released, released]
    assert len(federation.charged()) == ROUNDS
    if federation.trust == "server":  # else a sum that was being opened is paid for and lost
        assert federation.charged() == [str(t) for t, _ in released]
    assert len(released) >= ROUNDS - 2
    assert network.lost > 0
    _check_each_vector_counts_once(federation, [np.array(w)[0] for _, w in released])


def _check_each_vector_counts_once(federation, averages):
    """Without noise a broadcast is the average of one vector of each agent, or of none of it."""
    zero = np.zeros_like(averages[0])
    choices = [[*federation.sent(agent), zero] for agent in (0, 1)]
    used = []
    for average in averages:
        explained = [
            (i, j)
            for i, a in enumerate(choices[0])
            for j, b in enumerate(choices[1])
            if np.allclose((a + b) / 2, average, atol=1e-6)
        ]
        assert len(explained) == 1
        used += explained
    for agent in (0, 1):
        counted = [pair[agent] for pair in used if pair[agent] < len(choices[agent]) - 1]
        assert len(counted) == len(set(counted))
        assert counted
