"""Each parser of what comes from outside: valid inputs, what reads them, and what it may raise.

A parser is given a damaged input and must accept it or raise one of its documented errors, in a
bounded time, with a text that repeats nothing of what may be secret. What it accepts must be
usable.
"""

from __future__ import annotations

import copy
import json
import math
import sqlite3
import traceback
import warnings
from collections.abc import Callable
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import click
import numpy as np
from hypothesis import strategies as st

from privbo_plugins.algorithms.dp_fts_de import Broadcast, FederationConfig
from privbo_plugins.algorithms.dp_gibo import GIBOConfig
from privbo_plugins.algorithms.duets import Broadcast as EpochBroadcast
from privbo_plugins.algorithms.duets import DUETSConfig, FinitePoints, Upload, make_agents
from privbo_plugins.algorithms.po_gp_ucb import ReleasedTable, TableManifest
from privbo_plugins.algorithms.po_gp_ucb.exchange import read_answers, read_request
from privbo_plugins.algorithms.po_gp_ucb.table import sealed
from privbo_plugins.cli.curator import column, read_outcomes, read_table
from privbo_plugins.cli.federation import address
from privbo_plugins.cli.plan import dimension, setting
from privbo_plugins.errors import FederationError, SpaceChangedError, VaultError
from privbo_plugins.federation import FederatedServer, RemoteLink, listening, phases
from privbo_plugins.federation.history import AgentHistory
from privbo_plugins.federation.messages import MalformedError, understood
from privbo_plugins.sessions.certificates import Certificate, give_label, issue, verified
from privbo_plugins.sessions.records import Session
from privbo_plugins.sessions.rows import Curator
from privbo_plugins.sessions.stored import runs_of
from privbo_plugins.spaces import Categorical, Float, Int, Space
from privbo_plugins.store.rollback_guard import FileRollbackGuard
from privbo_plugins.store.run import begin_or_join
from privbo_plugins.store.vault import open_vault, resolve_url
from tests import inside, wires

from .mutations import (
    ODD_BYTES,
    ODD_NUMBERS,
    ODD_TEXTS,
    as_json,
    damaged_bytes,
    damaged_json,
    damaged_json_text,
    damaged_text,
)

SECRET = "Jane4711Doe"
"""Stands in valid inputs where a private value or a password does; no error may repeat it."""

SPACE = Space({
    "a": Float(0.1, 2.0, log=True), "b": Float(0.0, 1.0, step=0.1), "c": Int(1, 9),
    "d": Int(1, 100, log=True), "e": Categorical(("rbf", "poly")),
})  # fmt: skip

CONFIG = FederationConfig(
    3, z=1.0, q=1.0, n_rounds=4, n_features=4, clipping_norm=22.0, population="explore",
    n_startup=1,
)  # fmt: skip


@dataclass(frozen=True)
class Scene:
    """Where a parser is fed.

    Attributes:
        folder: For its files.
        ending: What is to be done afterwards.
    """

    folder: Path
    ending: ExitStack


@dataclass(frozen=True)
class Parser:
    """One way in.

    Attributes:
        name: Of the parser.
        errors: What it documents.
        prepare: From a scene to (damaged inputs, what reads one).
    """

    name: str
    errors: tuple
    prepare: Callable


# Frames -----------------------------------------------------------------------------------------


def frames(_scene):
    """Of bytes that somebody sends instead of a message."""
    valid = [
        {"key": SECRET, "vector": wires.packed(np.arange(4.0))},
        {"epoch": "0" * 32, "space": SPACE.to_dict()},
        wires.greeting(CONFIG),
    ]
    return damaged_bytes(*map(as_json, valid)), inside.read_message


def vectors(_scene):
    """Of vectors as text inside a frame."""
    texts = [wires.packed(np.random.default_rng(n).normal(size=n)) for n in (1, 4, 33)]

    def read(sent):
        assert inside.read_vector(sent).dtype == np.float64

    return damaged_text(*texts) | damaged_json(*texts), read


def hellos(scene):
    """Of what somebody shows who is an agent, or is not."""
    listener = _listening(scene)

    @st.composite
    def guarded_by(draw):
        agent = draw(st.integers(0, 2))
        number, secret = str(agent), inside.secret_of(listener, agent)
        if draw(st.booleans()):
            number = draw(damaged_text(number, "10"))
        if draw(st.booleans()):
            secret = draw(damaged_bytes(secret, bytes(32)))
        shown = [("privbo-agent", number), ("privbo-secret-bin", secret), ("user-agent", "x")]
        return draw(st.permutations(shown))[: draw(st.integers(0, 3))]

    def read(shown):
        status, reply = inside.told_by(listener, "greet", shown, b'{"last": 0}')
        given = dict(shown)
        number = given.get("privbo-agent", "")
        proven = number in ("0", "1", "2") and given.get("privbo-secret-bin") == inside.secret_of(
            listener, int(number)
        )
        if not proven:
            # A number may be written in several ways; whoever it is knows the secret.
            proven = status == "OK" and number.isdecimal() and int(number) < 3
        assert (status == "OK") == proven
        assert (b"config" in reply) == proven
        if not proven:
            raise MalformedError

    return guarded_by(), read


def _server():
    return FederatedServer(CONFIG, space=SPACE, deadline=None)


def _listening(scene):
    server = _server()
    identity = wires.impostor(SECRET.encode() * 4)
    listener = listening.Listener(server.rounds, ("127.0.0.1", 0), identity, server._invitations)
    scene.ending.callback(listener.close)
    listener.kept = server  # which it holds weakly itself
    return listener


def requests(scene):
    """Of what agents ask a server that knows them."""
    vector = wires.packed(np.arange(4.0))
    valid = {
        "greet": {"last": 0}, "join": {"space": SPACE.to_dict()},
        "submit": {"key": SECRET, "vector": vector}, "collect": {"round": 1, "sent": True},
        "broadcasts": {"after": 0}, "leave": {}, "guarantee": {},
    }  # fmt: skip
    held = {"listener": _listening(scene), "n": 0}
    scene.ending.enter_context(mock.patch.object(listening, "_POLL", 0.0))

    @st.composite
    def asked(draw):
        call = draw(st.sampled_from(list(valid)))
        epoch = {"epoch": held["listener"].epoch}
        return call, draw(damaged_json_text(epoch | valid[call]))

    def read(sent):
        held["n"] += 1
        if held["n"] % 500 == 0:  # its rounds are used up
            held["listener"].close()
            held["listener"] = _listening(scene)
        listener, (call, request) = held["listener"], sent
        shown = [("privbo-agent", "1"), ("privbo-secret-bin", inside.secret_of(listener, 1))]
        status, reply = inside.told_by(listener, call, shown, request)
        if status == "INVALID_ARGUMENT":
            raise MalformedError
        assert status == "OK"
        told = str(inside.read_message(reply).get("error", ""))
        assert SECRET not in told
        assert "failed inside" not in told, told

    return asked(), read


def pretender(greeting, reply):
    """A server that greets with what is given, and answers everything else so.

    Args:
        greeting: The result of a greeting.
        reply: Bytes of an answer, asked for at each request.
    """

    def answer(call, _request):
        if call != "greet":
            return reply()
        try:
            return as_json({"result": greeting})
        except ValueError:  # more digits than Python writes
            return b"{"

    return wires.Peer(answer)


def replies(scene):
    """Of what an agent is answered by a server that went wrong, or is another version."""
    text = wires.invitation(("nowhere.example", 1), 1, bytes(32))
    sent = wires.told(Broadcast(1, np.ones((1, 4)), np.ones(1)))
    answer = wires.greeting(CONFIG)
    calls = {
        "join": (lambda link: link.join(SPACE.to_dict()), None),
        "submit": (lambda link: link.submit(np.ones(4)), 1),
        "collect": (lambda link: link.collect(1), sent),
        "broadcasts": (lambda link: link.broadcasts(), {"page": [sent], "more": False}),
        "leave": (lambda link: link.leave(), None),
        "guarantee": (lambda link: str(link.guarantee()), _server().guarantee().to_dict()),
        "error": (lambda link: link.leave(), None),
    }

    @st.composite
    def answered(draw):
        call = draw(st.sampled_from(list(calls)))
        reply = {"result": calls[call][1]}
        if call == "error":
            reply = {"error": [draw(st.sampled_from(wires.TOLD)), "What is told."]}
        greeting = draw(st.just(answer) | damaged_json(answer))
        return call, greeting, draw(damaged_json_text(reply))

    met = []
    scene.ending.enter_context(wires.meeting(lambda: met[-1]))

    def read(said):
        call, greeting, reply = said
        met[:] = [pretender(greeting, lambda: reply)]
        try:
            link = RemoteLink(text)
            found = calls[call][0](link)
        except (ValueError, RuntimeError) as error:
            if type(error) is FederationError or _is_told(error, reply):
                raise FederationError(str(error)) from None
            raise AssertionError(f"{type(error).__name__}: {error}") from None
        _check_reply(call, found)

    return answered(), read


def _is_told(error, reply):
    """Whether it is the one that the server has told of, or is about what was to be sent."""
    if "A message has shape" in str(error):
        return True
    return bool(json.loads(reply).get("error") == [type(error).__name__, str(error)])


def _check_reply(call, found):
    """What a caller gets is of the documented kind."""
    if call == "submit":
        assert found is None or type(found) is int
    for broadcast in {"collect": [found], "broadcasts": found}.get(call, []):
        if broadcast is not None:
            assert type(broadcast.round) is int
            assert broadcast.weights.shape == (1, 4)
            assert broadcast.noise.shape == (1,)


INVITATIONS = [
    wires.invitation(address, 3, (SECRET * 3)[:32].encode())
    for address in (("127.0.0.1", 4711), ("::1", 1), ("clinic.example", 80))
]


def invitations(_scene):
    """Of invitations as an agent's operator pastes them."""
    texts = [*INVITATIONS, *(f"env:{text}" for text in INVITATIONS)]
    key = INVITATIONS[0].rpartition("#")[2]

    def read(text):
        with _repeating_nothing_of(text, key[:12]):
            found = inside.read_invitation(text)
        assert len(found.secret) == 32
        assert key not in repr(found)
        assert 0 < found.address[1] < 2**16
        assert _is_a_host(found.address[0])

    return damaged_text(*texts), read


@contextmanager
def _repeating_nothing_of(text, secret):
    """No error repeats the secret, but if it stands where a variable's name does."""
    why = None
    try:
        yield
    except ValueError as error:
        why = "".join(traceback.format_exception(error))
    if why is not None and secret in why and not text.removeprefix("env:").isidentifier():
        raise AssertionError(f"it repeats a secret: {why}")
    if why is not None:
        raise ValueError(why.replace(secret, "..."))


def _is_a_host(name):
    try:
        return bool(name.encode("idna"))
    except UnicodeError:
        return False


def handles(_scene):
    """Of a vault's URL."""
    texts = [
        "sqlite:////private/vault.db", f"postgresql+psycopg://me:{SECRET}@db.example:5432/vault",
        f"postgresql://me:{SECRET}@[::1]/vault?sslmode=require", "env:HOME", "sqlite://",
        f"env:postgresql://me:{SECRET}@db.example/vault", "sqlite:///file:x?uri=true",
    ]  # fmt: skip

    def read(text):
        with _repeating_nothing_of(text, SECRET):
            url = resolve_url(text)
        assert url.password != SECRET or text.count(SECRET) > 1 or SECRET not in repr(url)
        if url.get_backend_name() == "sqlite":
            assert url.database

    return damaged_text(*texts), read


# Rounds whose sum alone is seen -----------------------------------------------------------------


@dataclass(frozen=True)
class _Turn:
    """A phase of agent 0: how both sides stood before it sent or heard something, and that."""

    phase: int
    stood: Any
    message: Any


class _Watched:
    """Agent 0's way to its server, which writes down both."""

    def __init__(self, server, n):
        self._server, self._n = server, n
        self.agent: phases.Masking
        self.sent = []
        self.heard = []

    def enter(self, keys):
        return self._server.rounds.enter(self._n, keys)

    def turn(self, asked):
        before, phase = copy.deepcopy(self._server.rounds.current), asked["phase"]
        told = self._server.rounds.turn(self._n, asked, patience=0.0)
        if asked["sent"] is not None:
            self.sent.append(_Turn(phase, before, asked["sent"]))
        if not {"waiting", "over"} & set(told):
            self.heard.append(_Turn(phase, self.agent._attempt, told))
        return told


_MASKED = FederationConfig(4, z=0.0, n_features=4, population="explore", trust="aggregate")


def _watched():
    """A whole round of four agents."""
    server = FederatedServer(_MASKED, space=SPACE, deadline=None)
    ways = [_Watched(server, n) for n in range(4)]
    agents = [phases.Masking(way, _MASKED, n) for n, way in enumerate(ways)]
    for way, agent in zip(ways, agents, strict=True):
        way.agent = agent
        agent.submit(np.ones(4))
    while any([agent.step() for agent in agents]):
        pass
    assert [turn.phase for turn in ways[0].sent] == [phases.SHARES, phases.MASKED, phases.OPEN]
    assert [turn.phase for turn in ways[0].heard] == [phases.KEYS, phases.SHARES, phases.MASKED]
    return ways[0]


def _damaged(turns):
    """A turn, and a damaged version of its message."""
    with_message = lambda turn: st.tuples(st.just(turn), damaged_json(turn.message))  # noqa: E731
    return st.sampled_from(turns).flatmap(with_message)


def masked_answers(_scene):
    """Of what an agent hears from such a server."""
    turns = _watched().heard

    def read(given):
        turn, told = given
        stood = turn.stood
        entry = {"attempt": stood.name, "round": stood.t}
        attempt = phases._Attempt(_MASKED, 0, entry, stood._keys, stood._x)
        for earlier in turns[: turn.phase]:
            attempt.hear(earlier.message)
        understood(attempt.hear, told)
        assert attempt.phase == turn.phase + 1
        if attempt.phase == phases.OPEN:
            sent = attempt.to_send
            assert not set(sent["keys"]) & set(sent["seeds"])
            assert len({int(v) for v in told["present"]}) >= _MASKED.present

    return _damaged(turns), read


def masked_rounds(_scene):
    """Of what agents send to a server that sees the sum alone."""
    turns = _watched().sent

    def read(given):
        turn, sent = given
        attempt = copy.deepcopy(turn.stood)
        understood(lambda read: attempt.post(0, read), sent)
        assert attempt.phase == turn.phase
        _ = attempt.recoverable, attempt.complete(set())
        assert 0 in attempt._members(turn.phase)

    return _damaged(turns), read


# Settings and spaces ----------------------------------------------------------------------------


def spaces(_scene):
    """Of a space that another process describes."""
    valid = [SPACE.to_dict(), *({n: d} for n, d in SPACE.to_dict().items())]

    def read(described):
        space = Space.from_dict(described)
        for u in (0.0, 0.3, 1.0):
            x = space.snap(np.full(len(space), u))
            assert np.isfinite(x).all()
            space.encode(space.decode(x))
        _ = space.varies, space.d, space.names
        assert Space.from_dict(space.to_dict()).names == space.names

    return damaged_json(*valid), read


def settings(_scene):
    """Of a federation's settings, as a server tells them."""
    valid = [
        CONFIG.to_dict(),
        FederationConfig(5, epsilon=math.inf, n_rounds=3).to_dict(),
        FederationConfig.paper(29).to_dict(),
        FederationConfig(9, z=1.0, trust="aggregate", colluding=2, min_present=8).to_dict(),
    ]

    def read(stored):
        config = FederationConfig.from_dict(stored)
        assert FederationConfig.from_dict(config.to_dict()) == config
        assert config.message_length >= 1
        assert config.n_agents >= 1
        assert 0 < config.delta < 1

    return damaged_json(*valid), read


# Distributed tuning -----------------------------------------------------------------------------

_DUETS = DUETSConfig(n_agents=2, n_trials=24, discretisation=16)
_GRID = FinitePoints(np.linspace(0, 1, 20)[:, None])


def _epoch():
    server, agents = make_agents(_DUETS, _GRID, key=1)
    message = server.inducing_set()
    for agent in agents:
        for draw, x in enumerate(agent.points):
            agent.tell(draw, float(np.sin(9 * x[0])))
    for agent in agents:
        server.receive(agent.upload(message))
    return server, agents, server.close()


def epochs(_scene):
    """Of a server's broadcast, as an agent has it as JSON."""
    broadcast = _epoch()[2]
    public_state = make_agents(_DUETS, _GRID, key=1)[1][0].public_state

    def read(state):
        heard = EpochBroadcast.from_dict(state)
        own_turn = heard.epoch == public_state.j  # would change the agent for all that follow
        (copy.deepcopy(public_state) if own_turn else public_state).hear(heard)

    return damaged_json(broadcast.to_dict()), read


def uploads(_scene):
    """Of an agent's message, as a server receives it."""
    server, agents = make_agents(_DUETS, _GRID, key=1)
    message = server.inducing_set()
    for draw_, x in enumerate(agents[0].points):
        agents[0].tell(draw_, float(np.sin(9 * x[0])))
    valid = agents[0].upload(message)
    row = [valid.epoch, valid.agent, valid.kind, list(valid.numbers)]

    def read(sent):
        if isinstance(sent, list) and len(sent) == 4:
            copy.deepcopy(server).receive(Upload(*sent))  # which has received nothing yet

    return damaged_json(row), read


# What a vault has stored ------------------------------------------------------------------------


def histories(scene):
    """Of an agent's database, damaged on its disk or changed by another program."""
    path = scene.folder / "agent.db"
    url = f"sqlite:///{path}"
    history = AgentHistory("a", SPACE, vault=url)
    for number in range(4):
        history.append(number, np.full(len(SPACE), 0.25), float(number) / 3)
    history.told()
    inside.close_history(history)
    whole = path.read_bytes()
    damaged_file = st.none() | damaged_bytes(path.read_bytes())
    odd_values = st.sampled_from((*ODD_NUMBERS, *ODD_TEXTS, *ODD_BYTES))
    inputs = st.tuples(damaged_file, st.sampled_from(_cells(path)), odd_values)

    def read(change):
        damaged, (table, name, row), odd = change
        path.write_bytes(damaged or whole)
        if damaged is None and not _changed(path, table, name, row, odd):
            return
        known = AgentHistory("a", SPACE, vault=url, create=False)
        try:
            X, values = known.read()
            assert X.shape == (len(values), len(SPACE))
            assert np.isfinite(values).all()
            assert known.n_trials >= 0
        finally:
            inside.close_history(known)

    return inputs, read


def _cells(path):
    """(table, column, row) of everything that a database holds."""
    with closing(sqlite3.connect(path)) as database:
        tables = [name for (name,) in database.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table'"
        )]  # fmt: skip
        return [
            (table, column[1], row)
            for table in tables
            for column in database.execute(f'PRAGMA table_info("{table}")').fetchall()
            for (row,) in database.execute(f'SELECT rowid FROM "{table}"').fetchall()
        ]


def _changed(path, table, name, row, odd):
    """Whether the database takes such a value."""
    with closing(sqlite3.connect(path)) as database:
        try:
            database.execute(f'UPDATE "{table}" SET "{name}" = ? WHERE rowid = ?', (odd, row))
            database.commit()
        except (sqlite3.Error, OverflowError, UnicodeEncodeError):
            return False
    return True


# What a curator and a modeler exchange ----------------------------------------------------------


def released_table():
    X = np.random.default_rng(0).uniform(size=(6, 3))
    with warnings.catch_warnings(action="ignore"):
        return Curator(
            X, epsilon=1.0, delta=1e-5, bounds=[(0, 1)] * 3, r=2, columns="abc",
            outcomes=X[:, 0], outcome_epsilon=1.0, outcome_range=(0.0, 1.0),
        ).release()  # fmt: skip


def manifests(_scene):
    """Of a manifest that somebody has sealed with its table."""
    table = released_table()
    plain = Curator(table.Z, epsilon=1.0, delta=1e-5, norm_bound=5.0).release().manifest
    valid = [table.manifest.to_dict(), plain.to_dict()]

    def read(fields):
        made = sealed(table.Z, TableManifest.from_dict(fields))
        assert made.manifest.answer_variance >= 0.0
        if made.manifest.outcomes is None:  # else its loss takes a tenth of a second
            guarantee = made.guarantee(3)
            assert str(guarantee)
            assert guarantee.to_dict()

    return damaged_json(*valid), read


def privacy_certificates(scene):
    """Of a certificate of a run, which is compared with the vault that has issued it."""
    vault = open_vault()
    scene.ending.callback(vault.close)
    Session.open(vault, "loop", GIBOConfig(mu=1.0), maximize=False)
    runs = runs_of(vault)
    give_label(runs[0], "wards2026")
    valid = dict(issue(runs).facts)

    def read(data):
        made = Certificate.from_json(data.decode(errors="replace"))
        assert made.to_markdown().startswith("# Privacy certificate")
        lines = verified(made, vault)
        assert all(line.found.isprintable() for line in lines)
        if all(line.agrees for line in lines):
            assert made.facts == valid

    return damaged_json_text(valid, {**valid, "vault": "0" * 8}), read


def tables(ending):
    """Of a released table's file."""

    def prepare(scene):
        path, valid = scene.folder / f"table{ending}", [released_table(), released_table()]
        files = [made.save(path).read_bytes() for made in valid]
        numbers = [made.Z.tobytes() for made in valid]

        def read(data):
            path.write_bytes(data)
            assert ReleasedTable.load(path).Z.tobytes() in numbers or data[:64] != files[0][:64]

        return damaged_bytes(*files), read

    return prepare


def exchanged(scene):
    """Of files with requests and answers."""
    request, answers = scene.folder / "request.json", scene.folder / "answers.json"
    valid = [
        {"format": "privbo-request-1", "table": "t", "rows": [0, 3, 5]},
        {"format": "privbo-answers-1", "table": "t", "answers": {"0": 0.5, "3": -1}},
    ]
    valid = [{**sent, "note": SECRET} for sent in valid]

    def read(sent):
        which, data = sent
        path = answers if which else request
        path.write_bytes(data)
        if which:
            told = read_answers(path, "t")
            assert all(row >= 0 and math.isfinite(y) for row, y in told.items())
        else:
            assert all(0 <= row < 6 for row in read_request(path, "t", 6))

    return st.tuples(st.integers(0, 1), damaged_json_text(*valid)), read


def rollback_guards(scene):
    """Of the file that remembers how far a run's releases had come."""
    path = scene.folder / "guard.json"
    vault = open_vault()
    scene.ending.callback(vault.close)
    run = begin_or_join(vault, "loop", {})
    FileRollbackGuard(path, run).note("point", [0.5, SECRET])
    valid = json.loads(path.read_text()) | {"n": 3, "digest": "0" * 64, "places": ["a", "b"]}

    def read(data):
        path.write_bytes(data)
        rollback_guard = FileRollbackGuard(path, run)
        assert rollback_guard.head().n >= 0
        assert all(isinstance(place, str) for place in rollback_guard.head().places)
        assert isinstance(rollback_guard.noted(), dict)

    return damaged_json_text(valid, {**valid, "run": "another"}), read


def data_files(scene):
    """Of the curator's CSV file."""
    path = scene.folder / "people.csv"
    columns = [column("age:18:98"), column("bmi:10:60"), column("sex=F,M")]
    lines = [f"name,age,bmi,sex,{SECRET}", *(f"{SECRET}{i},{30 + i},2{i}.5,F,0" for i in range(4))]
    files = ["\n".join(lines).encode(), "\r\n".join(["\ufeff" + lines[0], *lines[1:]]).encode()]

    def read(data):
        path.write_bytes(data)
        try:
            X = read_table(path, columns)
        finally:
            y = read_outcomes(path, "age")
        assert X.size == 0 or X.shape == (len(y), 4)

    return damaged_bytes(*files), read


def column_options(_scene):
    """Of a column on the curator's command line."""
    texts = ["age:18:98", "sex=F,M", "a:b:-1e3:0.5", "x=1,2,3"]

    def read(text):
        found = column(text)
        assert len(found.names) == found.read([""]).shape[1]

    return damaged_text(*texts), read


def plan_options(_scene):
    """Of a parameter, a setting and an address on the command line."""
    texts = ["C:0.01:100:log", "depth:1:8:int", "kernel=rbf,poly", "x:-1e3:0.5", "b=[0, 2]",
             "n_steps=25", "127.0.0.1:7000", "[::1]:0"]  # fmt: skip

    def read(text):
        for parse in (dimension, setting, address):
            with suppress(click.BadParameter):
                parse(text)
        name, found = dimension(text)
        assert found.decode(0.5) is not None or name == ""

    return damaged_text(*texts), read


_LINK_ERRORS = (MalformedError,)

PARSERS = [
    Parser("federation frames", _LINK_ERRORS, frames),
    Parser("federation vectors", _LINK_ERRORS, vectors),
    Parser("federation hellos", _LINK_ERRORS, hellos),
    Parser("federation requests", _LINK_ERRORS, requests),
    Parser("federation replies", (FederationError,), replies),
    Parser("federation settings", (ValueError,), settings),
    Parser("masked rounds, sent", _LINK_ERRORS, masked_rounds),
    Parser("masked rounds, heard", _LINK_ERRORS, masked_answers),
    Parser("invitations", (ValueError,), invitations),
    Parser("vault handles", (ValueError,), handles),
    Parser("spaces", (ValueError,), spaces),
    Parser("DUETS broadcasts", (ValueError,), epochs),
    Parser("DUETS uploads", (ValueError,), uploads),
    Parser("agents' databases", (VaultError, SpaceChangedError), histories),
    Parser("manifests", (ValueError,), manifests),
    Parser("certificates of runs", (ValueError,), privacy_certificates),
    Parser("released tables, npz", (ValueError,), tables(".npz")),
    Parser("released tables, parquet", (ValueError,), tables(".parquet")),
    Parser("requests and answers", (ValueError,), exchanged),
    Parser("guards", (VaultError,), rollback_guards),
    Parser("data files", (ValueError,), data_files),
    Parser("column options", (click.BadParameter,), column_options),
    Parser("plan options", (click.BadParameter,), plan_options),
]
