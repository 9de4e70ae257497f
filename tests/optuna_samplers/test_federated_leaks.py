"""Nothing of one agent's trials in any byte that another agent or the server keeps.

An agent's own study, its own log and the vectors that it sends are its own: they may hold its
values. Agents of one process share its memory, so what is scanned there is what gets out of it:
files, logs, pickles, texts and tracebacks. What agents receive is noisy sums, which these tests
look for exact values in; how much noise there is, is for the audits to say.
"""

from __future__ import annotations

import base64
import contextlib
import io
import logging
import multiprocessing
import pickle
import secrets
import sqlite3
import struct
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import federated_worker as worker
import numpy as np
import optuna
import pytest
from federated_worker import N_STARTUP, SQUARE, Recorder, make_config
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState

from optuna_samplers import DPFTSDESampler, FederatedServer, run_federated
from privbo_plugins.algorithms.dp_fts_de import RoundSum
from privbo_plugins.errors import FederationError, PrivacyError, SpaceChangedError
from privbo_plugins.federation import connect
from tests.leaks import Scanner, exception_leaks

N_AGENTS, N_ROUNDS = 3, 3
N_TRIALS = N_STARTUP + N_ROUNDS + 1
OTHER = {"z": FloatDistribution(0, 1)}

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["optuna", "optuna_samplers", "opendp.measurements"])


class Secrets:
    """One agent's values, texts, start-up points and vectors, and who looks for them."""

    def __init__(self, n: int) -> None:
        self.n, self.scanner = n, Scanner()
        self._rng = np.random.default_rng([41, n])
        self.token = f"ward-{n}-{secrets.token_hex(8)}"
        self.scanner.add_text(f"token of {n}", self.token)
        self.values: list[float] = []
        self.vectors: list[np.ndarray] = []

    def value(self) -> float:
        """In (0.1, 0.9), of full precision, and nobody else's."""
        y = float(self._rng.uniform(0.12, 0.88))
        self.values.append(y)
        name = f"value {len(self.values)} of {self.n}"
        self.scanner.add_number(name, y)
        self.scanner.add_number(f"1 - {name}", 1 - y)  # a minimiser's unit
        self.scanner.add_raw(f"- {name}", -y)
        return y

    def add_points(self, study: optuna.Study) -> None:
        """The start-up trials, which lie where the agent's own seed says."""
        for trial in study.trials[:N_STARTUP]:
            for name, value in trial.params.items():
                self.scanner.add_raw(f"{name} of {self.n}", value)

    def add_vector(self, vector: np.ndarray) -> None:
        """What was sent, and what is left of it after clipping."""
        norm = float(np.linalg.norm(vector))
        self.vectors.append(vector)
        for scaled in {1.0, min(1.0, make_config().norm / norm)}:
            for i, w in enumerate(vector):
                self.scanner.add_raw(f"vector {len(self.vectors)}[{i}] of {self.n}", scaled * w)

    def objective(self, trial: Any) -> float:
        """Tells its own study everything, and fails in ways that quote it."""
        trial.suggest_float("x", 0, 1)
        trial.suggest_float("y", -2, 2)
        y = self.value()
        trial.set_user_attr(self.token, {self.token: y})
        trial.report(y, 0)
        if trial.number == 1:
            raise ValueError(f"{self.token}: {y!r} is no number")
        if trial.number == 3:
            raise optuna.TrialPruned(f"{self.token} {y!r}")
        return y


ENCODERS: dict[str, Callable[[float], bytes]] = {
    "decimal": lambda y: repr(y).encode(),
    "8 digits": lambda y: f"{y:.8g} ".encode(),
    "hex": lambda y: struct.pack("<d", y).hex().encode(),
    "float.hex": lambda y: y.hex().encode(),
    "float64 <": lambda y: struct.pack("<d", y),
    "float64 >": lambda y: struct.pack(">d", y),
    "base64": lambda y: base64.b64encode(struct.pack("<d", y)),
    "base64 of a vector": lambda y: base64.b64encode(struct.pack("<3d", 1.5, y, 2.5)),
    "pickle": lambda y: pickle.dumps({"y": y}),
    "complement": lambda y: repr(1 - y).encode(),
    "negative": lambda y: struct.pack(">d", -y),
}


@pytest.mark.parametrize("encode", ENCODERS.values(), ids=ENCODERS.keys())
def test_control_each_encoding_of_a_value_is_found(encode: Callable[[float], bytes]) -> None:
    own = Secrets(0)
    y = own.value()
    for before in range(9):
        assert own.scanner.hits(before * b"\xfe" + b" " + encode(y) + b" and so on")
    assert own.scanner.hits(secrets.token_bytes(100_000)) == []


@pytest.mark.parametrize(
    "encode",
    [
        lambda v: v.tobytes(),
        lambda v: v.astype(">f8").tobytes(),
        lambda v: base64.b64encode(b"x" + v.tobytes()),
        lambda v: repr(v.tolist()).encode(),
        pickle.dumps,
        lambda v: (v * min(1.0, make_config().norm / np.linalg.norm(v))).tobytes(),
    ],
)
def test_control_each_encoding_of_a_vector_is_found(encode: Any) -> None:
    for length in (0.5, 100.0):
        own = Secrets(0)
        vector = np.random.default_rng(0).normal(size=20)
        own.add_vector(vector * length)
        assert len(own.scanner.hits(encode(vector * length))) >= 20


# A federation that is looked at from everywhere -------------------------------------------------


class Log(logging.Handler):
    """Everything that any logger says at DEBUG, by thread, and by whether a study's host says it.

    Optuna and its database's driver quote the study that they work for: each agent's own log.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[tuple[str, bool], list[str]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        key = threading.current_thread().name, record.name.startswith(("optuna.", "sqlalchemy."))
        self.lines.setdefault(key, []).append(f"{record.name} {self.format(record)}")

    def artefacts(self, thread: str | None = None) -> dict[str, bytes]:
        """What a thread says; None for what all say, without their studies' hosts."""
        return {
            f"log of {who}, {'host' if hosts else 'others'}": "\n".join(said).encode()
            for (who, hosts), said in self.lines.items()
            if (not hosts if thread is None else who == thread)
        }


@pytest.fixture
def log() -> Iterator[Log]:
    handler = Log()
    names = ("", "sqlalchemy.engine", "sqlalchemy.pool", "privbo", "privbo_plugins", "privbo.x")
    levels = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.DEBUG)
    logging.getLogger().addHandler(handler)
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.DEBUG)
    optuna.logging.enable_propagation()
    yield handler
    optuna.logging.disable_propagation()
    optuna.logging.set_verbosity(verbosity)
    logging.getLogger().removeHandler(handler)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


@pytest.fixture(scope="session")
def study_template(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file with Optuna's tables, to copy."""
    path = tmp_path_factory.mktemp("template") / "study.db"
    storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
    storage.remove_session()
    storage.engine.dispose()
    return path.read_bytes()


class Watched:
    """A federation of this process, and what each agent may not see of the others."""

    def __init__(self, folder: Path, template: bytes, link: Any = lambda link: link) -> None:
        self.folder = folder
        self.vault = folder / "vault.db"
        self.server = FederatedServer(
            make_config(n_rounds=N_ROUNDS), vault=f"sqlite:///{self.vault}", deadline=30.0
        )
        self.secrets = [Secrets(n) for n in range(N_AGENTS)]
        self.links = [Recorder(link(self.server.connect(n))) for n in range(N_AGENTS)]
        self.samplers, self.studies = [], []
        for n, recorder in enumerate(self.links):
            (folder / f"agent-{n}.db").write_bytes(template)
            sampler = DPFTSDESampler(recorder, search_space=SQUARE, seed=n)
            self.samplers.append(sampler)
            self.studies.append(
                optuna.create_study(
                    storage=f"sqlite:///{folder}/agent-{n}.db", study_name="s", sampler=sampler
                )
            )

    def in_threads(self) -> None:
        """Every agent in a thread of its own, which tells whose log is whose."""
        threads = [
            threading.Thread(target=self._work, args=(n,), name=f"agent-{n}", daemon=True)
            for n in range(N_AGENTS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        self._remember()

    def _work(self, n: int) -> None:
        study = self.studies[n]
        study.optimize(self.secrets[n].objective, n_trials=N_TRIALS, catch=(ValueError,))
        self.samplers[n].guarantee(study)

    def one_after_another(self) -> None:
        run_federated(
            self.studies,
            [own.objective for own in self.secrets],
            N_ROUNDS + 1,
            catch=ValueError,
            show_progress_bar=True,
        )
        for sampler, study in zip(self.samplers, self.studies, strict=True):
            sampler.guarantee(study)
        self._remember()

    def _remember(self) -> None:
        for own, link, study in zip(self.secrets, self.links, self.studies, strict=True):
            own.add_points(study)
            for _, vector in link.sent:
                own.add_vector(vector)

    def of_agent(self, n: int) -> dict[str, bytes]:
        """What agent n keeps, knows and could publish."""
        sampler, study, link = self.samplers[n], self.studies[n], self.links[n]
        guarantee = sampler.guarantee(study)
        found = {
            p.name: p.read_bytes()
            for p in self.folder.iterdir()
            if p.name.startswith(f"agent-{n}")
        }
        public = {name: v for name, v in sampler.__getstate__().items() if name != "link"}
        for name, thing in {
            "trials": study.trials,
            "attributes": study.user_attrs,
            "sampler": public,
            "guarantee": guarantee,
            "config": link.config,
            "broadcasts": link.broadcasts(),
            "received": link.received,
            "recommendation": sampler.recommend(study),
        }.items():
            found[f"pickle of {name}"] = pickle.dumps(thing)
            found[f"repr of {name}"] = repr(thing).encode()
        for name, thing in {"sampler": sampler, "link": link.link, "study": study}.items():
            found[f"text of {name}"] = (repr(thing) + str(thing)).encode()
        found["text of guarantee"] = (str(guarantee) + repr(guarantee.to_dict())).encode()
        return found

    def of_server(self) -> dict[str, bytes]:
        """What the server keeps and could publish."""
        files = [p for p in self.folder.iterdir() if p.name.startswith("vault.db")]
        server = self.server
        texts = [server, server.config, server.ledger(), server.guarantee(), server.broadcasts()]
        return {p.name: p.read_bytes() for p in files} | {
            "texts of the server": "\n".join(map(repr, texts)).encode(),
            "pickled broadcasts": pickle.dumps(server.broadcasts()),
        }

    def leaks(self, log: Log | None = None) -> list[str]:
        """Of every agent's secrets, where else than at home they are."""
        found = []
        for own in self.secrets:
            artefacts = self.of_server() | (log.artefacts() if log else {})
            for n in range(N_AGENTS):
                if n != own.n:
                    mine = self.of_agent(n) | (log.artefacts(f"agent-{n}") if log else {})
                    artefacts |= {f"{name}, agent {n}": blob for name, blob in mine.items()}
            found += own.scanner.scan(artefacts)
        return found

    def check_it_ran(self) -> None:
        for own, link, study in zip(self.secrets, self.links, self.studies, strict=True):
            states = [trial.state for trial in study.trials]
            assert len(states) == len(own.values) == N_TRIALS
            assert states.count(TrialState.FAIL) == states.count(TrialState.PRUNED) == 1
            assert len(own.vectors) >= N_ROUNDS == len(link.received)
        assert self.server.guarantee().protected


def test_agents_in_threads_keep_their_values(
    tmp_path: Path, study_template: bytes, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    sums, exact, scanner = list[np.ndarray](), RoundSum.exact, Scanner()

    def remembered(total: RoundSum) -> np.ndarray:
        sums.append(exact(total))
        return sums[-1].copy()

    monkeypatch.setattr(RoundSum, "exact", remembered)
    watched = Watched(tmp_path, study_template)
    watched.in_threads()
    watched.check_it_ran()
    assert watched.leaks(log) == []
    assert len(sums) == N_ROUNDS
    for value in np.ravel(sums):  # nor is a sum, before noise, anywhere at all
        scanner.add_raw("sum", value)
        scanner.add_raw("mean", value / N_AGENTS)
    everywhere = [watched.of_server(), log.artefacts(), *map(watched.of_agent, range(N_AGENTS))]
    assert [scanner.scan(artefacts) for artefacts in everywhere] == [[]] * len(everywhere)

    # Controls: at home everything is there, and each agent's log is its own.
    for n, own in enumerate(watched.secrets):
        home = " ".join(own.scanner.scan(watched.of_agent(n)))
        assert f"agent-{n}.db: token of {n}" in home
        assert all(f"agent-{n}.db: value {i} of {n}" in home for i in range(1, N_TRIALS + 1))
        assert f"x of {n}" in home
        said = " ".join(own.scanner.scan(log.artefacts(f"agent-{n}")))
        assert f"log of agent-{n}, host: token of {n}" in said
        assert f"log of agent-{n}, host: value {N_TRIALS} of {n}" in said


def test_agents_that_take_turns_keep_their_values(
    tmp_path: Path, study_template: bytes, log: Log, capfd: pytest.CaptureFixture[str]
) -> None:
    """In one thread logs are one as well; only Optuna quotes what its own study found."""
    watched = Watched(tmp_path, study_template)
    capfd.readouterr()
    watched.one_after_another()
    out, err = capfd.readouterr()
    bar = [line for line in err.splitlines() if "trial" in line and "[I" not in line]
    for own in watched.secrets:
        assert own.scanner.hits("\n".join(bar[-1:]).encode()) == []
    assert out == ""
    assert watched.leaks() == []
    for own in watched.secrets:
        assert own.scanner.scan(log.artefacts()) == []


# Links and servers that leak, which must be found -----------------------------------------------


class Talkative(worker.Wrapper):
    """Tells the server's vault what it sends, in a way that a debugging line might."""

    def submit(self, message: np.ndarray) -> int | None:
        t = super().submit(message)
        server = self.link._server
        server.mark("note", repr(message[:3].tolist()))
        return t


def test_control_what_leaks_is_found(
    tmp_path: Path, study_template: bytes, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = RoundSum.add

    def loud(total: RoundSum, n: int, w: np.ndarray) -> None:
        logging.getLogger("privbo.x").debug("agent %d sent %s", n, w.tobytes().hex())
        add(total, n, w)

    monkeypatch.setattr(RoundSum, "add", loud)
    watched = Watched(tmp_path, study_template, link=Talkative)
    watched.in_threads()
    watched.studies[1].set_user_attr("hint", watched.secrets[0].values[0])
    watched.studies[2].set_user_attr("hint", watched.secrets[0].token)
    found = " ".join(watched.leaks(log))
    for n in range(N_AGENTS):
        assert f"log of agent-{n}, others: vector 1[0] of {n} as float64< hex" in found
        assert f"vault.db: vector 1[0] of {n} as decimal" in found
    assert "attributes, agent 1: value 1 of 0" in found
    assert "agent-1.db, agent 1: value 1 of 0" in found
    assert "agent-2.db, agent 2: token of 0" in found
    assert ", agent 0: value" not in found


# Texts of errors --------------------------------------------------------------------------------

REFUSE = (
    "CREATE TRIGGER refuse BEFORE INSERT ON privbo_releases "
    "BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"
)


def _error_of(call: Callable[[], Any], kind: type[Exception]) -> BaseException:
    try:
        call()
    except kind as error:
        return error
    pytest.fail("nothing was raised")


def test_errors_that_the_server_raises_quote_nobody(tmp_path: Path, study_template: bytes) -> None:
    """Neither their text nor their tracebacks' variables, beside what the caller itself sent."""
    watched = Watched(tmp_path, study_template)
    run_federated(watched.studies, [own.objective for own in watched.secrets], 1, catch=ValueError)
    with contextlib.closing(sqlite3.connect(watched.vault)) as connection, connection:
        connection.execute(REFUSE)
    for n in range(2):
        watched.samplers[n].send(watched.studies[n])
    link = watched.server.connect(2)
    length = link.config.message_length
    failed = _error_of(lambda: link.submit(np.ones(length)), FederationError)  # completes round 2
    watched._remember()
    fresh = FederatedServer(watched.server.config).connect(0)

    errors = [
        failed,
        _error_of(lambda: link.collect(2), FederationError),
        _error_of(lambda: fresh.submit(np.ones(length + 1)), ValueError),
        _error_of(lambda: link.join({"z": {}}), SpaceChangedError),
        _error_of(
            lambda: DPFTSDESampler(link, search_space=OTHER),
            SpaceChangedError,
        ),
        _error_of(lambda: watched.server.connect("nobody"), ValueError),
        _error_of(lambda: pickle.dumps(watched.server), PrivacyError),
        *(_error_of(lambda s=s: pickle.dumps(s), PrivacyError) for s in watched.samplers),
    ]
    for own in watched.secrets:
        assert len(own.vectors) >= 1
        for error in errors:
            assert exception_leaks(error, own.scanner) == []


def test_control_an_error_that_quotes_is_found() -> None:
    own = Secrets(0)
    y = own.value()

    def quotes() -> None:
        try:
            raise ValueError(f"{own.token} {y!r}")
        except ValueError as error:
            raise FederationError("hidden") from error

    assert exception_leaks(_error_of(quotes, FederationError), own.scanner)


# Processes ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_server_in_a_process_of_its_own_keeps_nothing(study_template: bytes) -> None:
    """Here memories are apart: the server's files, log and streams, and what agents receive."""
    with tempfile.TemporaryDirectory(prefix="fed-") as name:
        folder = Path(name)
        process = _CONTEXT.Process(
            target=worker.serve_loudly, args=(folder, f"sqlite:///{folder}/vault.db", N_AGENTS)
        )
        process.start()
        try:
            found = _remote(folder, study_template)
        finally:
            (folder / "stop").touch()
            process.join(30)
            process.kill()
        assert process.exitcode == 0
        for own in found:
            own.check(folder)


class RemoteAgent:
    """An agent of this process at a server of another; agents run in threads."""

    def __init__(self, folder: Path, n: int, template: bytes) -> None:
        self.n, self.own = n, Secrets(n)
        path = folder / f"agent-{n}.db"
        path.write_bytes(template)
        self.remote = worker.invited(folder / f"invitation-{n}")
        self.link = Recorder(self.remote)
        self.sampler = DPFTSDESampler(self.link, search_space=SQUARE, seed=n)
        self.study = optuna.create_study(
            storage=f"sqlite:///{path}", study_name="s", sampler=self.sampler
        )

    def work(self) -> None:
        self.study.optimize(self.own.objective, n_trials=N_TRIALS, catch=(ValueError,))
        self.sampler.guarantee(self.study)
        self.own.add_points(self.study)
        for _, vector in self.link.sent:
            self.own.add_vector(vector)

    def check(self, folder: Path) -> None:
        """Nothing of this agent in the server's files or the others'."""
        mine = f"agent-{self.n}.db"
        others = {
            str(p): p.read_bytes()
            for p in folder.rglob("*")
            if p.is_file() and not p.name.startswith(mine)
        }
        assert any(name.endswith("vault.db") for name in others)
        assert any(name.endswith("server.log") and blob for name, blob in others.items())
        assert len(self.own.vectors) >= N_ROUNDS == len(self.link.received)
        assert self.own.scanner.scan(others) == []
        assert self.own.scanner.hits((folder / mine).read_bytes())


def _remote(folder: Path, template: bytes) -> list[RemoteAgent]:
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    end = time.monotonic() + 30
    while not (folder / f"invitation-{N_AGENTS - 1}").exists() and time.monotonic() < end:
        time.sleep(0.05)
    agents = [RemoteAgent(folder, n, template) for n in range(N_AGENTS)]
    threads = [threading.Thread(target=agent.work, daemon=True) for agent in agents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    optuna.logging.set_verbosity(verbosity)
    for agent in agents:
        for error in _remote_errors(agent):
            for other in agents:
                if other is not agent:
                    assert exception_leaks(error, other.own.scanner) == []
        agent.remote.close()
    return agents


def _remote_errors(agent: RemoteAgent) -> list[BaseException]:
    """What the server tells an agent that asks for something wrong."""
    link = agent.remote
    return [
        _error_of(lambda: DPFTSDESampler(link, search_space=OTHER), SpaceChangedError),
        _error_of(lambda: link.submit(np.ones(3)), ValueError),
        _error_of(lambda: pickle.dumps(agent.sampler), PrivacyError),
        _error_of(lambda: connect("privbo://nowhere"), ValueError),
    ]


def test_an_invitation_is_in_no_text(tmp_path: Path) -> None:
    """It is a secret too: whoever has it speaks for its agent."""
    server = FederatedServer(make_config(1))
    server.listen()
    try:
        invitation = server.invitation(0)
        scanner = Scanner()
        scanner.add_text("invitation", invitation.rpartition("#")[2])
        assert scanner.hits(invitation.encode())
        link = connect(invitation)
        sampler = DPFTSDESampler(link, search_space=SQUARE)
        study = optuna.create_study(sampler=sampler)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with warnings.catch_warnings(record=True):
            study.optimize(lambda t: t.suggest_float("x", 0, 1), n_trials=N_STARTUP + 1)
        text = io.StringIO()
        print(link, repr(link), sampler, study, sampler.guarantee(study), study.trials, file=text)
        assert scanner.hits(text.getvalue().encode()) == []
        error = _error_of(lambda: pickle.dumps(sampler), PrivacyError)
        assert scanner.hits(f"{error!r}{error}".encode()) == []
        link.close()
    finally:
        server.close()
