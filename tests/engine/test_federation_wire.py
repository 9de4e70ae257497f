"""Agents in processes of their own: what arrives, what is refused, and what survives a death."""

from __future__ import annotations

import base64
import copy
import gc
import json
import os
import pickle
import shutil
import signal
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from privbo_plugins.algorithms.dp_fts_de import FederationConfig
from privbo_plugins.errors import (
    FederationError,
    PrivacyError,
    PrivacyWarning,
    SpaceChangedError,
    VaultError,
)
from privbo_plugins.federation import FederatedServer, Link, RemoteLink, connect, wire
from privbo_plugins.spaces import Categorical, Float, Space
from privbo_plugins.store.vault import open_vault
from tests import wires
from tests.worker import CONTEXT, PATIENCE

from .scenes import SENTINEL, SPACE, as_json, obey, vector

M = 20
PLAIN: dict[str, Any] = {
    "population": "explore",
    "n_rounds": 10,
    "q": 1.0,
    "z": 0.0,
    "clipping_norm": 1e3,
    "n_features": M,
    "n_startup": 2,
}
"""No noise, no sampling, hardly clipping: a broadcast is the average of what was sent."""


def eventually(condition: Callable[[], bool]) -> None:
    """Waits until something that is bound to happen has happened."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


# Processes --------------------------------------------------------------------------------------


class Remote:
    """A process of :func:`tests.engine.scenes.obey`; what it prints goes to a file."""

    def __init__(self, role: str, errors: Path) -> None:
        self._calls, other = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=obey, args=(role, other, str(errors)))
        self.process.start()
        other.close()
        self.said = b""

    def ask(self, method: str, *arguments: Any) -> None:
        """Begins a call."""
        self._calls.send_bytes(json.dumps([method, arguments]).encode())

    def answer(self) -> Any:
        """Its answer; of an error the name and text."""
        assert self._calls.poll(PATIENCE), "the process does not answer"
        said = self._calls.recv_bytes()
        self.said += said
        reply = json.loads(said)
        return reply.get("error", reply.get("result"))

    def __call__(self, method: str, *arguments: Any) -> Any:
        self.ask(method, *arguments)
        return self.answer()

    def is_killed(self) -> bool:
        """Whether it dies of a signal that is sent by now."""
        self.process.join(PATIENCE)
        return self.process.exitcode == -signal.SIGKILL

    def kill(self) -> None:
        self.process.kill()
        assert self.is_killed()

    def close(self) -> None:
        self.process.kill()
        self.process.join()
        self._calls.close()


@dataclass
class Pool:
    """Agents' processes, used again by the next test."""

    errors: Path
    every: list[Remote] = field(default_factory=list)

    def take(self, n: int) -> list[Remote]:
        idle = [agent for agent in self.every if agent.process.is_alive()]
        fresh = [Remote("agent", self.errors) for _ in range(n - len(idle))]
        self.every += fresh
        return [*idle, *fresh][:n]


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    made = Pool(tmp_path_factory.mktemp("agents") / "printed")
    yield made
    for agent in made.every:
        agent.close()
    assert made.errors.read_bytes() == b""


@contextmanager
def serving(
    n_agents: int = 3,
    *,
    address: Any = ("127.0.0.1", 0),
    secret: Any = None,
    settings: dict[str, Any] = PLAIN,
    **more: Any,
) -> Iterator[FederatedServer]:
    server = FederatedServer(FederationConfig(n_agents=n_agents, **settings), **more)
    before = working()
    server.listen(address, secret=secret)
    try:
        yield server
    finally:
        server.close()
        assert working() <= before


def working() -> set[threading.Thread]:
    """Threads of servers that listen."""
    return {t for t in threading.enumerate() if t.name.startswith("federation")}


def served() -> set[threading.Thread]:
    """Threads that serve an agent's connection each."""
    return {t for t in working() if t.name == "federation-agent"}


def invited(server: FederatedServer, agents: list[Remote]) -> None:
    for n, agent in enumerate(agents):
        assert agent("connect", server.invitation(n)) == n
        assert agent("join") is None


def average(n_agents: int, seeds: list[int]) -> np.ndarray:
    total: np.ndarray = np.sum([vector(M, seed) for seed in seeds], axis=0)
    return total / n_agents


def locally(n_agents: int, seeds: list[int]) -> Any:
    """What a server and agents of one process make of the same vectors."""
    server = FederatedServer(FederationConfig(n_agents=n_agents, **PLAIN))
    for n, seed in enumerate(seeds):
        server.connect(n).submit(vector(M, seed))
    server.close_round()
    return as_json(server.broadcasts()[0])


def test_agents_in_processes_receive_what_the_vault_holds(pool: Pool, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'vault.db'}"
    settings = PLAIN | {"z": 1.0, "n_regions": 2}
    with serving(vault=url, settings=settings, deadline=None) as server:
        agents = pool.take(3)
        invited(server, agents)
        for agent in agents:
            agent.ask("participate", 2)
        answers = [agent.answer() for agent in agents]
        held = [as_json(b) for b in server.broadcasts()]
        assert [charge.key for charge in server.ledger()] == ["1", "2"]
    assert answers == [held, held, held]
    vault = open_vault(url)
    with vault.transaction(server.run.run_id) as tx:
        stored = [[int(k), p["weights"], p["noise"]] for _, _, k, p in tx.releases_after(0)]
    vault.close()
    assert stored == held
    assert np.array(held[0][1]).shape == (2, M)


def test_without_noise_the_broadcast_is_the_average_to_the_last_bit(pool: Pool) -> None:
    with serving(deadline=None) as server:
        agents = pool.take(3)
        invited(server, agents)
        assert [agent("submit", seed) for seed, agent in enumerate(agents)] == [1, 1, 1]
        found = [agent("collect", 1) for agent in agents]
    assert found == [locally(3, [0, 1, 2])] * 3
    np.testing.assert_allclose(found[0][1][0], average(3, [0, 1, 2]), atol=1e-6)


def test_an_agent_killed_before_it_sends_is_not_waited_for(
    pool: Pool, clock: SimpleNamespace
) -> None:
    with serving(deadline=0.5) as server:
        agents = pool.take(3)
        invited(server, agents)
        agents[2].kill()
        assert [agents[0]("submit", 0), agents[1]("submit", 1)] == [1, 1]
        clock.now += 1
        assert agents[0]("collect", 1) == agents[1]("collect", 1) == locally(3, [0, 1])


def test_an_agent_killed_after_it_sent_is_in_the_sum(pool: Pool, clock: SimpleNamespace) -> None:
    with serving(deadline=0.5) as server:
        agents = pool.take(3)
        invited(server, agents)
        assert [agents[1]("submit", 1), agents[2]("submit", 2)] == [1, 1]
        agents[2].kill()
        clock.now += 1
        eventually(lambda: len(server.broadcasts()) == 1)  # though nobody waits for it
        expected = average(3, [1, 2])
        np.testing.assert_allclose(server.broadcasts()[0].weights[0], expected, atol=1e-6)
        assert len(agents[0]("broadcasts")) == 1


def test_a_late_agent_takes_part_in_the_next_round(pool: Pool) -> None:
    with serving(deadline=None) as server:
        agents = pool.take(3)
        invited(server, agents[:2])
        assert [agents[0]("submit", 0), agents[1]("submit", 1)] == [1, 1]
        agents[0].ask("collect", 1)
        server.close_round()
        first = agents[0].answer()
        assert agents[2]("connect", server.invitation(2)) == 2
        assert agents[2]("broadcasts") == [first]
        assert [agent("submit", n) for n, agent in enumerate(agents)] == [2, 2, 2]
        assert agents[2]("collect", 2) == [2, *locally(3, [0, 1, 2])[1:]]


def test_nobody_waits_for_an_agent_that_has_left(pool: Pool) -> None:
    with serving(deadline=None) as server:
        agents = pool.take(3)
        invited(server, agents)
        agents[2]("leave")
        assert [agents[0]("submit", 0), agents[1]("submit", 1)] == [1, 1]
        assert agents[0]("collect", 1) == locally(3, [0, 1])


def test_a_forked_agent_opens_a_connection_of_its_own(pool: Pool) -> None:
    with serving(1) as server:
        agents = pool.take(1)
        invited(server, agents)
        (t, child), n_broadcasts, parent = agents[0]("fork", 0)
        assert (t, n_broadcasts) == (1, 1)
        assert child != parent
        assert as_json(server.broadcasts()[0]) == locally(1, [0])


# A server that dies -----------------------------------------------------------------------------


def traces(content: bytes) -> list[str]:
    """In which forms the sentinel occurs."""
    little, big = struct.pack("<d", SENTINEL), struct.pack(">d", SENTINEL)
    forms = {
        "decimal": repr(SENTINEL)[:14].encode(),
        "hex": SENTINEL.hex()[4:16].encode(),
        "little": little,
        "big": big,
        "hex of bytes": little.hex().encode(),
    }
    for shift in range(3):
        inner = base64.b64encode(b"\0" * shift + little)[4 if shift else 0 : 8]
        rest = base64.b64encode(b"\0" * shift + little)[4 : (8 + shift) // 3 * 4]
        forms[f"base64/{shift}"] = rest if shift else inner
    return [name for name, form in forms.items() if form in content]


def test_the_search_for_traces_finds_them() -> None:
    le = struct.pack("<d", SENTINEL)
    assert traces(json.dumps([SENTINEL, 1.5]).encode()) == ["decimal"]
    assert traces(SENTINEL.hex().encode()) == ["hex"]
    assert "little" in traces(b"x" + le)
    assert "big" in traces(struct.pack(">d", SENTINEL))
    for shift in range(3):
        assert f"base64/{shift}" in traces(base64.b64encode(b"a" * (3 + shift) + le + b"tail"))
    assert traces(b"nothing of the kind") == []


def test_a_killed_server_goes_on_where_it_was(pool: Pool, tmp_path: Path) -> None:
    settings = PLAIN | {"n_agents": 3, "z": 1.0, "n_rounds": 4}
    url = f"sqlite:///{tmp_path / 'vault.db'}"
    secret = str(tmp_path / "secret")
    address: Any = ["127.0.0.1", 0]
    agents, orphans, errors = pool.take(3), [], tmp_path / "printed"
    servers = [Remote("server", errors) for _ in range(3)]
    try:
        address, invitations = servers[0]("listen", settings, url, address, secret)
        again = [settings, url, address, secret]
        for n, agent in enumerate(agents):
            assert [agent("connect", invitations[n]), agent("join")] == [n, None]
        assert [agent("submit", n) for n, agent in enumerate(agents)] == [1, 1, 1]
        first = agents[0]("collect", 1)

        # In the middle of round 2, while an agent waits for its end.
        assert [agents[0]("submit", 0), agents[1]("submit", 1)] == [2, 2]
        agents[0].ask("collect", 2)
        orphans.append(servers[0]("fork"))  # must not keep the port
        servers[0].kill()
        assert agents[0].answer()[0] == "FederationError"
        assert agents[1]("submit", 1)[0] == "FederationError"
        assert servers[1]("listen", *again) == [address, invitations]
        assert agents[1]("collect", 2) is None  # what it sent is gone: nobody to wait for
        assert agents[2]("submit", 2) == 2
        assert agents[1]("collect", 2) is None  # though somebody else has opened it again
        assert [agents[0]("submit", 0), agents[1]("submit", 1)] == [2, 2]
        second = agents[2]("collect", 2)
        assert second == agents[0]("collect", 2)

        # Between the release of round 3 and its answer.
        servers[1]("die_after_release")
        assert [agents[0]("submit", 0), agents[1]("submit", 1)] == [3, 3]
        assert agents[2]("submit", 2)[0] == "FederationError"
        assert servers[1].is_killed()
        assert servers[2]("listen", *again) == [address, invitations]
        third = agents[0]("collect", 3)
        for agent in agents:
            assert agent("broadcasts") == [first, second, third]
        assert servers[2]("ledger") == ["1", "2", "3"]
        assert servers[2]("close") is None
    finally:
        for process in servers:
            process.close()
        for child in orphans:
            os.kill(child, signal.SIGKILL)
    assert errors.read_bytes() == b""
    assert stat.S_IMODE(os.stat(secret).st_mode) == 0o600
    said = b"".join(process.said for process in servers)
    assert traces((tmp_path / "vault.db").read_bytes() + said) == []
    assert traces(b"".join(agent.said for agent in agents)) == []


def test_a_socket_that_a_killed_server_left_is_used_again(tmp_path: Path) -> None:
    settings, secret = PLAIN | {"n_agents": 1}, str(tmp_path / "secret")
    path = tmp_path / "own" / "socket"
    errors = tmp_path / "printed"
    process = Remote("server", errors)
    try:
        address, invitations = process("listen", settings, None, str(path), secret)
        link = connect(invitations[0])
        assert link.submit(np.ones(M)) == 1
    finally:
        process.close()
    assert errors.read_bytes() == b""
    assert (address, stat.S_IMODE(path.parent.stat().st_mode)) == (str(path), 0o700)
    assert path.exists()
    with closing(link):
        with pytest.raises(FederationError, match="Connection refused"):
            link.broadcasts()
        with serving(1, address=path, secret=secret) as server:
            assert server.invitation(0) == invitations[0]
            assert link.submit(np.ones(M)) == 1
    assert not path.exists()


# A ledger that was lost or put back ------------------------------------------------------------


def forget(_vault: Path, _backup: Path) -> None:
    pass


def put_back(vault: Path, backup: Path) -> None:
    shutil.copy(backup, vault)


def remove(vault: Path, _backup: Path) -> None:
    vault.unlink()


@pytest.mark.parametrize(
    ("durable", "damage"), [(False, forget), (True, put_back), (True, remove)]
)
def test_a_server_that_lost_its_ledger_is_found_out(
    durable: bool, damage: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    config = FederationConfig(
        n_agents=1, epsilon=2.0, delta=1e-2, **PLAIN | {"z": None, "n_rounds": 2}
    )
    vault, backup = tmp_path / "server.db", tmp_path / "backup.db"
    url = f"sqlite:///{vault}" if durable else None
    path, secret = tmp_path / "socket", tmp_path / "secret"
    received: list[bytes] = []

    def begin() -> FederatedServer:
        server = FederatedServer(config, vault=url)
        server.listen(path, secret=secret)
        return server

    def send() -> bool:
        t = link.submit(np.ones(M))
        found = None if t is None else link.collect(t)
        if found is not None:
            received.append(found.weights.tobytes())
        return found is not None

    server = begin()
    link = connect(server.invitation(0))
    try:
        assert send()
        if durable:
            shutil.copy(vault, backup)
        assert send()
        assert not send()
        server.close()
        damage(vault, backup)
        server = begin()
        told = False
        try:
            while send():
                pass
            told = not link.guarantee().protected
        except (FederationError, PrivacyError):
            told = True
        assert told or len(set(received)) == config.n_rounds
    finally:
        link.close()
        server.close()


# Who is refused ---------------------------------------------------------------------------------


@contextmanager
def raw(server: FederatedServer) -> Iterator[socket.socket]:
    """A connection that has received the server's first words and said nothing."""
    with wires.stranger(server.invitation(0)) as sock:
        yield sock


def message(**fields: Any) -> bytes:
    return wires.frame(json.dumps({"agent": 0} | fields).encode())


def is_closed(sock: socket.socket) -> bool:
    """Whether the server ends the connection without a word."""
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:  # it had not read everything
        return True


class Bomb:
    """Leaves a file behind if it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


VECTOR = base64.b64encode(np.ones(M).tobytes()).decode()

NONSENSE: dict[str, bytes] = {
    "not JSON": wires.frame(b"\x00\xff garbage"),
    "no object": wires.frame(b"[1, 2]"),
    "too deep": wires.frame(b"[" * 60000),
    "too long": struct.pack("!I", 2**31) + b"x",
    "just too long": struct.pack("!I", 2**16 + 11 * M + 1) + b"x",
    "HTTP": b"GET / HTTP/1.0\r\n\r\n",
    "empty": wires.frame(b""),
    "nobody": wires.frame(b'{"call": "leave"}'),
    "another agent": wires.frame(
        json.dumps({"agent": 1, "call": "submit", "key": "k", "vector": VECTOR}).encode()
    ),
    "a number that is none": wires.frame(b'{"agent": false, "call": "leave"}'),
    "unknown call": message(call="close_round"),
    "private call": message(call="__init__"),
    "a call that is none": message(call=["join"]),
    "no vector": message(call="submit", key="k"),
    "half a number": message(call="submit", key="k", vector="AAAA"),
    "no base64": message(call="submit", key="k", vector="\ud800"),
    "no key": message(call="submit", vector=VECTOR),
    "no round": message(call="collect", round=-1),
    "no space": message(call="join", space=[1]),
    "no space either": message(call="join", space={"x": {"type": "float", "low": 2, "high": 1}}),
    "no number": message(call="broadcasts", epoch="", after="1"),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_ends_its_own_connection_alone(name: str) -> None:
    with serving(2, deadline=None) as server, closing(connect(server.invitation(1))) as link:
        its_own = served()
        with raw(server) as sock:
            assert "config" in wires.introduce(sock, server.invitation(0))
            assert len(served()) == 2
            sock.sendall(NONSENSE[name])
            assert is_closed(sock)
        eventually(lambda: len(served()) < 2)
        assert link.submit(np.ones(M)) == 1
        assert served() == its_own  # over the connection that it had
        assert server.broadcasts() == []  # the other agent has sent nothing


@pytest.mark.parametrize(
    "said",
    [
        b"\x80\x04garbage" * 10,
        struct.pack("!I", 1025),
        wires.frame(b"{}"),
        wires.frame(b'{"agent": 0, "nonce": "\\ud800", "proof": "\\ud800"}'),
        wires.frame(b'{"agent": 0, "nonce": 1, "proof": ""}'),
        wires.frame(b'{"agent": 1' + b"0" * 900 + b', "nonce": "", "proof": ""}'),
        wires.frame(b'{"agent": -1, "nonce": "", "proof": ""}'),
    ],
)
def test_whoever_proves_nothing_is_answered_nothing(said: bytes) -> None:
    with serving(1) as server, raw(server) as sock:
        wires.hear(sock)
        sock.sendall(said)
        rest = b""
        try:
            while chunk := sock.recv(4096):
                rest += chunk
        except ConnectionResetError:
            pass
        assert rest in (b"", wires.frame(b'{"refused": true}'))
        with closing(connect(server.invitation(0))) as link:
            assert link.broadcasts() == []


def test_half_a_vector_is_none() -> None:
    with serving(2, deadline=None) as server:
        with raw(server) as sock:
            wires.introduce(sock, server.invitation(0))
            sock.sendall(message(call="submit", key="k", vector=VECTOR)[:-9])
        with closing(connect(server.invitation(1))) as link:
            assert link.submit(vector(M, 1)) == 1
            server.close_round()
            found = link.collect(1)
        assert found is not None
        np.testing.assert_allclose(found.weights[0], average(2, [1]), atol=1e-6)


def test_a_pickle_is_never_loaded(tmp_path: Path) -> None:
    bomb = pickle.dumps(Bomb(tmp_path / "exploded"))
    with serving(1) as server:
        for prove in (False, True):
            with raw(server) as sock:
                if prove:
                    wires.introduce(sock, server.invitation(0))
                else:
                    wires.hear(sock)
                sock.sendall(wires.frame(bomb))
                assert is_closed(sock)
        with closing(connect(server.invitation(0))) as link:
            assert link.submit(np.ones(M)) == 1
    assert not (tmp_path / "exploded").exists()


def test_a_secret_opens_one_agent_of_one_federation() -> None:
    with serving(2, secret=b"m" * 32) as server:
        own, other = server.invitation(0), server.invitation(1)
        assert own.split("#")[1] != other.split("#")[1]
        with raw(server) as sock:
            assert wires.introduce(sock, own, agent=1) == {"refused": True}
        with serving(3, secret=b"m" * 32) as longer:
            former = longer.invitation(2)
            assert longer.invitation(1).split("#")[1] == other.split("#")[1]
        with raw(server) as sock:
            assert wires.introduce(sock, former) == {"refused": True}
        for stranger in (
            own.replace("/0#", "/1#"),
            own.split("#")[0] + "#" + base64.urlsafe_b64encode(b"w" * 32).decode().rstrip("="),
        ):
            with pytest.raises(FederationError, match="new invitation"):
                connect(stranger)
        with serving(2, secret=b"m" * 32, run_name="another") as another:
            assert another.invitation(0).split("#")[1] != own.split("#")[1]
        with closing(connect(own)) as link:
            assert link.config == server.config


def test_an_impostor_is_sent_nothing() -> None:
    heard: list[dict[str, Any]] = []

    def pose(listening: socket.socket) -> None:
        with listening.accept()[0] as sock:
            wires.greet(sock)
            heard.append(wires.hear(sock))
            settings = FederationConfig(n_agents=1, **PLAIN).to_dict()
            wires.say(sock, config=settings, deadline=None, proof=heard[0]["proof"])
            heard.extend({"more": True} for _ in iter(lambda: sock.recv(1), b""))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=pose, args=(listening,))
        thread.start()
        invitation = wires.invitation(listening.getsockname(), 0, b"s" * 32)
        with pytest.raises(FederationError, match="Nothing was sent"):
            connect(invitation)
        thread.join()
    assert [sorted(words) for words in heard] == [["agent", "nonce", "proof"]]


def test_too_many_connections_end_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_CONNECTIONS", 2)
    with serving(2, deadline=None) as server:
        with raw(server) as first, raw(server) as second:
            for sock in (first, second):  # neither has proven anything
                wires.hear(sock)
            with raw(server) as third:
                wires.hear(third)
                assert is_closed(first)
        waiting: list[Any] = []
        links = [connect(server.invitation(0)) for _ in range(3)]
        assert links[1].submit(np.ones(M)) == 1
        thread = threading.Thread(target=lambda: waiting.append(links[2].collect(1)))
        thread.start()
        with closing(connect(server.invitation(1))) as other:
            assert other.submit(np.ones(M)) == 1
        thread.join()
        assert waiting[0].round == 1
        for link in links:
            assert len(link.broadcasts()) == 1
            link.close()


# Links ------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[FederatedServer]:
    with serving(1, deadline=None) as made:
        yield made


@pytest.fixture
def link(server: FederatedServer) -> Iterator[RemoteLink]:
    with closing(connect(server.invitation(0))) as made:
        yield made


def test_a_link_is_a_link(server: FederatedServer, link: RemoteLink) -> None:
    used: Link = link
    assert (used.agent, used.config) == (0, server.config)
    assert used.guarantee() == server.guarantee()
    assert used.collect(1) is None
    assert used.broadcasts() == []
    used.leave()


def test_errors_pass_by_name_and_text(server: FederatedServer, link: RemoteLink) -> None:
    space = Space({"x": Float(0, 1, log=False), "c": Categorical(("a", 1, None))})
    link.join(space.to_dict())
    link.join(space.to_dict())
    other = Space({"x": Float(0.0, 2.0)}).to_dict()
    with pytest.raises(SpaceChangedError) as remote:
        link.join(other)
    with pytest.raises(SpaceChangedError) as local:
        server.connect(0).join(other)
    assert str(remote.value) == str(local.value)
    for wrong in (np.ones(M + 1), np.ones((1, M)), np.full(M, SENTINEL)[:3]):
        with pytest.raises(ValueError, match=r"shape \(20,\)") as refused:
            link.submit(wrong)
        assert traces(str(refused.value).encode()) == []
    with pytest.raises(ValueError, match="fewer choices"):
        link.join({f"x{i:09d}": {} for i in range(10000)})


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (VaultError(f"database at /private {SENTINEL}"), "needs the database back"),
        (RuntimeError(f"value {SENTINEL}"), r"failed inside \(RuntimeError\)"),
        (FederationError("a rule"), "a rule"),
    ],
)
def test_what_fails_inside_the_server_is_not_quoted(
    server: FederatedServer, link: RemoteLink, monkeypatch: Any, error: Exception, text: str
) -> None:
    def fail(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(server, "broadcasts", fail)
    with pytest.raises(FederationError, match=text) as told:
        link.broadcasts()
    assert traces(str(told.value).encode()) == []
    monkeypatch.undo()
    assert link.broadcasts() == []


def test_a_vault_that_is_gone_leaves_the_server_answering(
    server: FederatedServer, link: RemoteLink, monkeypatch: Any
) -> None:
    def refuse(*_: Any) -> Any:
        raise VaultError("locked")

    monkeypatch.setattr(server, "_release", refuse)
    with pytest.raises(FederationError, match="was not released"):
        link.submit(np.ones(M))
    assert link.broadcasts() == []
    monkeypatch.undo()
    server.close_round()
    assert len(link.broadcasts()) == 1


def test_a_vector_that_is_sent_again_counts_once(server: FederatedServer) -> None:
    answers = []
    for key in ("a", "a", "b"):
        with raw(server) as sock:
            wires.introduce(sock, server.invitation(0))
            sock.sendall(message(call="submit", key=key, vector=VECTOR))
            answers.append(wires.hear(sock))
    assert answers == [{"result": 1}, {"result": 1}, {"result": 2}]
    assert len(server.broadcasts()) == 2


def test_a_lost_connection_is_opened_again(server: FederatedServer) -> None:
    with wires.dialled() as opened, closing(connect(server.invitation(0))) as link:
        assert link.submit(np.ones(M)) == 1
        opened[0].shutdown(socket.SHUT_RDWR)
        assert link.submit(np.ones(M)) == 2
        link.close()
        assert [b.round for b in link.broadcasts()] == [1, 2]
    assert len(opened) == 3


def test_a_server_begun_again_is_found_by_old_invitations(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    with serving(1, secret=secret) as server:
        invitation = server.invitation(0)
        address = wires.address_in(invitation)
        link = connect(invitation)
        link.join(SPACE.to_dict())
        assert link.submit(np.ones(M)) == 1
    with closing(link):
        with pytest.raises(FederationError, match="cannot be reached"):
            link.broadcasts()
        with serving(1, secret=secret, address=address) as server:
            assert server.invitation(0) == invitation
            assert link.collect(1) is None
            with pytest.raises(SpaceChangedError):  # it was told the space again
                server.connect(0).join(Space({"z": Float(0, 1)}).to_dict())
            assert server.connect(0).submit(np.zeros(M)) == 1
            assert link.submit(np.zeros(M)) == 2
            found = link.broadcasts()  # it began anew: what the other released is not its
            assert [(b.round, bool(b.weights.any())) for b in found] == [(1, False), (2, False)]
        changed = PLAIN | {"n_features": M + 1}
        with serving(1, secret=secret, address=address, settings=changed):
            with pytest.raises(FederationError, match="other settings"):
                link.broadcasts()
        with serving(1, secret=secret, address=address):
            with pytest.raises(FederationError, match="lost its ledger"):
                link.broadcasts()
        other = Space({"z": Float(0, 1)})
        with serving(1, secret=secret, address=address, space=other):
            with closing(connect(invitation)) as fresh, pytest.raises(SpaceChangedError):
                fresh.join(SPACE.to_dict())


def test_many_broadcasts_come_in_pages() -> None:
    settings = PLAIN | {"n_rounds": 70, "n_features": 2}
    with serving(1, settings=settings) as long, closing(connect(long.invitation(0))) as link:
        local = long.connect(0)
        for t in range(1, 71):
            assert local.submit(np.full(2, t)) == t
            if t in (3, 66):
                assert len(link.broadcasts()) == t
        assert link.submit(np.zeros(2)) is None
        found = link.broadcasts()
        assert [as_json(b) for b in found] == [as_json(b) for b in long.broadcasts()]
        with closing(connect(long.invitation(0))) as late:
            assert [as_json(b) for b in late.broadcasts()] == [as_json(b) for b in found]


def test_every_bit_of_a_vector_arrives(server: FederatedServer, link: RemoteLink) -> None:
    sent = np.random.default_rng(0).normal(size=M)
    sent[:6] = [np.nan, np.inf, -np.inf, -0.0, 5e-324, SENTINEL]
    assert wires.unpacked(heard_of(sent)["vector"]).tobytes() == sent.tobytes()
    assert link.submit(sent) == 1  # NaN and infinity are the sum's business
    assert not link.broadcasts()[0].weights.any()
    with raw(server) as sock:
        wires.introduce(sock, server.invitation(0))
        sock.sendall(message(call="submit", key="k", vector=wires.packed(vector(M, 0))))
        assert wires.hear(sock) == {"result": 2}
    assert as_json(server.broadcasts()[1])[1:] == locally(1, [0])[1:]


def heard_of(sent: np.ndarray) -> dict[str, Any]:
    """What a link says that submits a vector."""
    secret, heard = b"s" * 32, list[dict[str, Any]]()
    settings = FederationConfig(n_agents=1, **PLAIN).to_dict()

    def answer(listening: socket.socket) -> None:
        with listening.accept()[0] as sock:
            wires.greet(sock)
            greeting = {"config": settings, "deadline": None, "released": []}
            wires.say(sock, **wires.proven(greeting, secret, wires.hear(sock)))
            heard.append(wires.hear(sock))
            wires.say(sock, result=1)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=answer, args=(listening,))
        thread.start()
        with closing(connect(wires.invitation(listening.getsockname(), 0, secret))) as link:
            assert link.submit(sent) == 1
        thread.join()
    return heard[0]


def test_threads_of_an_agent_wait_for_the_same_round() -> None:
    with serving(2, deadline=None) as server, closing(connect(server.invitation(0))) as link:
        assert link.submit(np.ones(M)) == 1
        found: list[Any] = []
        threads = [
            threading.Thread(target=lambda: found.append(link.collect(1))) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        assert link.broadcasts() == []  # does not queue behind those that wait
        with closing(connect(server.invitation(1))) as other:
            assert other.submit(np.ones(M)) == 1
        for thread in threads:
            thread.join()
        assert [b.round for b in found] == [1, 1, 1, 1]


class SlowPath:
    """Passes on both ways what an agent and a server say.

    Of the second connection it keeps the server's greeting, sets ``held``, and passes it on once
    ``go_on`` is set.
    """

    def __init__(self, server: FederatedServer) -> None:
        self._there = server.invitation(0)
        self.held, self.go_on = threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> SlowPath:
        listening = socket.create_server(("127.0.0.1", 0))
        self._sockets.append(listening)
        self.invitation = wires.invitation(
            listening.getsockname(), 0, wires.secret_in(self._there)
        )
        self._begin(self._accept, listening)
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join(PATIENCE)
        for sock in self._sockets:
            sock.close()

    def _begin(self, *call: Any) -> None:
        self._threads.append(threading.Thread(target=call[0], args=call[1:]))
        self._threads[-1].start()

    def _accept(self, listening: socket.socket) -> None:
        for late in (False, True):
            near = listening.accept()[0]
            far = socket.create_connection(wires.address_in(self._there))
            self._sockets += [near, far]
            self._begin(self._pass_on, near, far, False)
            self._begin(self._pass_on, far, near, late)

    def _pass_on(self, source: socket.socket, to: socket.socket, late: bool) -> None:
        with suppress(OSError, EOFError):
            wires.say(to, **wires.hear(source))
            said = wires.hear(source)
            if late:
                self.held.set()
                assert self.go_on.wait(PATIENCE)
            while True:
                wires.say(to, **said)
                said = wires.hear(source)
        with suppress(OSError):
            to.shutdown(socket.SHUT_RDWR)


def test_a_greeting_on_the_way_while_a_round_ends_is_no_lost_ledger() -> None:
    found: list[Any] = []
    with serving(2, deadline=None) as server, SlowPath(server) as path:
        with closing(connect(path.invitation)) as link:
            assert link.submit(np.ones(M)) == 1
            threads = [
                threading.Thread(target=lambda: found.append(link.collect(1))) for _ in range(2)
            ]
            for thread in threads:
                thread.start()
            assert path.held.wait(PATIENCE)  # it says that nothing was released yet
            assert server.connect(1).submit(np.ones(M)) == 1
            while not found:  # by now the other thread knows of a release
                time.sleep(0.01)
            path.go_on.set()
            for thread in threads:
                thread.join(PATIENCE)
    assert [b.round for b in found] == [1, 1]


def test_a_server_that_closes_releases_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(2, deadline=None) as server, closing(connect(server.invitation(0))) as link:
        assert link.submit(np.ones(M)) == 1
        errors: list[str] = []
        waiting = threading.Event()

        def time_left(_: Any) -> None:
            if threading.current_thread().name == "federation-agent":
                waiting.set()  # holds the lock until it waits

        monkeypatch.setattr(server, "_time_left", time_left)

        def wait() -> None:
            try:
                link.collect(1)
            except FederationError as error:
                errors.append(str(error))

        thread = threading.Thread(target=wait)
        thread.start()
        assert waiting.wait(60)
        server.close()
        thread.join()
        assert "go on alone" in errors[0]
        server.close()
        local = server.connect(1)
        assert local.submit(np.ones(M)) == 1  # what the round held stays
        assert len(server.broadcasts()) == 1


def test_a_server_that_nobody_holds_ends() -> None:
    server = FederatedServer(FederationConfig(n_agents=1, **PLAIN))
    server.listen()
    with closing(connect(server.invitation(0))) as link:
        assert link.broadcasts() == []
        del server
        gc.collect()
        with pytest.raises(FederationError):
            link.broadcasts()
    eventually(lambda: not working())


# Secrets ----------------------------------------------------------------------------------------


def test_a_link_shows_no_secret_and_is_not_pickled(
    server: FederatedServer, link: RemoteLink
) -> None:
    invitation = server.invitation(0)
    shown = f"{link!r} {link} {vars(link)} {server!r} {vars(server)}"
    assert invitation.split("#")[1] not in shown
    assert repr(wires.secret_in(invitation))[2:10] not in shown
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(PrivacyError, match="env:NAME"):
            copied(link)


def test_an_invitation_may_lie_in_the_environment(
    server: FederatedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDERATION", server.invitation(0) + "\n")
    with closing(connect("env:FEDERATION")) as link:
        assert link.agent == 0
    with pytest.raises(ValueError, match="'ELSEWHERE', which is not set"):
        connect("env:ELSEWHERE")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "privbo://127.0.0.1:1/0",
        "privbo://127.0.0.1:1/0#{key}x",
        "privbo://127.0.0.1:{key}/0#{key}",
        "privbo://127.0.0.1/0#{key}",
        "privbo://[::1/0#{key}",
        "privbo://127.0.0.1:1/-1#{key}",
        "privbo://127.0.0.1:1/x/1#{key}",
        "privbo+unix:///0#{key}",
        "https://127.0.0.1:1/0#{key}",
    ],
)
def test_what_is_no_invitation_is_not_repeated(text: str) -> None:
    key = base64.urlsafe_b64encode(bytes(range(32))).decode().rstrip("=")
    with pytest.raises(ValueError, match="This is not an invitation") as refused:
        connect(text.format(key=key))
    assert key not in str(refused.value)
    assert refused.value.__context__ is None


@pytest.mark.parametrize("address", [("127.0.0.1", 0), ("::1", 0), "a b#c/ä", "relative"])
def test_an_invitation_is_read_as_it_was_written(
    address: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in another folder than the server's."""
    if address == ("::1", 0) and not socket.has_ipv6:
        pytest.skip("no IPv6 on this machine")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    with serving(8, address=address) as server:
        written = server.invitation(7)
        assert (wires.agent_in(written), len(wires.secret_in(written))) == (7, 32)
        monkeypatch.chdir(elsewhere)
        with closing(connect(written)) as link:
            assert (link.agent, link.config) == (7, server.config)
        monkeypatch.chdir(tmp_path)


def test_a_secret_file_is_for_its_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "secret"
    with serving(1, secret=path) as server:
        held, invitation = path.read_bytes(), server.invitation(0)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "exists", lambda _: False)  # another server is faster
        with serving(1, secret=path) as server:
            assert server.invitation(0).split("#")[1] == invitation.split("#")[1]
    assert (path.read_bytes(), os.listdir(tmp_path)) == (held, ["secret"])
    server = FederatedServer(FederationConfig(n_agents=1, **PLAIN))
    path.chmod(0o640)
    with pytest.raises(PrivacyError, match="can be read by other users"):
        server.listen(secret=path)
    for wrong in (b"short", tmp_path / "no" / "where"):
        with pytest.raises(ValueError, match="secret"):
            server.listen(secret=wrong)
    with pytest.raises(ValueError, match="does not listen"):
        server.invitation(0)


def test_addresses_that_cannot_be_used(tmp_path: Path) -> None:
    taken = tmp_path / "file"
    taken.write_text("not a socket")
    with serving(1, address=tmp_path / "socket") as server:
        assert stat.S_IMODE((tmp_path / "socket").stat().st_mode) == 0o600
        with pytest.raises(ValueError, match="listens already"):
            server.listen()
        other = FederatedServer(FederationConfig(n_agents=1, **PLAIN))
        for address in (tmp_path / "socket", taken, tmp_path / ("x" * 200)):
            with pytest.raises(FederationError, match="cannot listen on"):
                other.listen(address)
        with closing(connect(server.invitation(0))) as link:
            assert link.broadcasts() == []
    assert taken.read_text() == "not a socket"
    assert not (tmp_path / "socket").exists()


def test_a_network_that_may_listen_is_warned_of() -> None:
    server = FederatedServer(FederationConfig(n_agents=1, **PLAIN))
    with pytest.warns(PrivacyWarning, match="unencrypted"):
        _, port = server.listen(("0.0.0.0", 0))
    with pytest.raises(ValueError, match="which one agents reach it by"):
        server.invitation(0)
    invitation = server.invitation(0, address=("127.0.0.1", int(port)))
    with closing(connect(invitation)) as link:
        assert link.broadcasts() == []
    server.close()
    server.listen()  # again, elsewhere
    server.close()
