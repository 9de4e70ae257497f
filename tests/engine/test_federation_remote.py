"""Agents in processes of their own: what arrives, what is refused, and what survives a death."""

import base64
import copy
import datetime
import gc
import json
import math
import os
import pickle
import shutil
import signal
import socket
import threading
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import grpc
import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from privbo_plugins.algorithms.dp_fts_de import FederationConfig
from privbo_plugins.errors import (
    FederationError,
    PrivacyError,
    PrivacyWarning,
    SpaceChangedError,
    VaultError,
)
from privbo_plugins.federation import FederatedServer, connect, identity, listening, messages
from privbo_plugins.federation.masking import Keys
from privbo_plugins.sealing import Reader
from privbo_plugins.spaces import Float, Space
from tests import wires
from tests.worker import PATIENCE, script

from .listeners import (
    PLAIN,
    PUBLIC,
    M,
    eventually,
    free_address,
    locally,
    serving,
    traces,
    working,
)
from .scenes import SENTINEL, SPACE, as_json, vector

pytestmark = pytest.mark.filterwarnings("ignore:This federation adds no noise")

# What was agreed upon ---------------------------------------------------------------------------

AGREED = FederationConfig(
    n_agents=6, epsilon=2.0, trust="aggregate", colluding=1, min_present=5, clipping_norm=1.0,
    n_features=M,
)  # fmt: skip


def _other(value):
    """Another value of the same kind, as a message holds it."""
    if isinstance(value, list):
        return [_other(value[0]), *value[1:]]
    if isinstance(value, dict):
        return value | {name: _other(inner) for name, inner in list(value.items())[:1]}
    if isinstance(value, str):
        return {"aggregate": "server", "prior": "explore"}[value]
    if isinstance(value, int):
        return value + 1
    return 2 * (value or 0.25)


def _forged(name):
    """The greeting of a server with another value of one setting, as small as it can be."""
    told = AGREED.to_dict()
    told[name] = _other(told[name])
    if name == "z":
        told["epsilon"] = None
    if name == "trust":
        told |= {"colluding": None, "min_present": None}
    if name == "q":
        told |= {"q": 0.5, "trust": "server", "colluding": None, "min_present": None}
    if name == "n_regions":
        told["population"] = "explore"
    return wires.greeting(AGREED) | {"config": told}


@contextmanager
def greeted_by(greeting):
    """An invitation to whoever greets so, and then the calls that came there."""
    calls = []

    def answer(call, _request, _metadata):
        calls.append(call)
        return wires.as_json({"result": greeting})

    with wires.pretending(answer) as address:
        calls.append(wires.invitation(address, 0, wires.MASTER))
        yield calls


@pytest.mark.parametrize("name", sorted(AGREED.to_dict()))
def test_a_greeting_that_differs_from_what_was_agreed_is_refused(name):
    """Every setting forged in turn: trust, T, c, z, epsilon, delta, rounds and all others."""
    greeting = _forged(name)
    forged = FederationConfig.from_dict(greeting["config"])  # a proper one, but for that
    assert forged != AGREED
    with greeted_by(greeting) as calls:
        with pytest.raises(PrivacyError, match=f"{name}=.* in place of .*Nothing was sent"):
            connect(calls[0], agreed=AGREED)
        assert calls[1:] == ["greet"]
        connect(calls[0], agreed=forged).close()


FORGED_CLAIMS = {
    "epsilon": 0.01, "epsilon_spent": 0.0, "delta": 1e-9, "n_agents": 10**6, "n_rounds": 1,
    "parameters": {"z": 100.0}, "not_covered": [], "n_released": 0,
}  # fmt: skip


@pytest.mark.parametrize("name", FORGED_CLAIMS)
def test_an_agent_claims_what_it_has_agreed_to_whatever_its_server_says(name):
    with closing(FederatedServer(AGREED)) as server:
        truth = server.guarantee()
    told = truth.to_dict() | {name: FORGED_CLAIMS[name]}

    def answer(call, _request, _metadata):
        return wires.as_json({"result": told if call == "guarantee" else wires.greeting(AGREED)})

    with wires.pretending(answer) as address:
        invitation = wires.invitation(address, 0, wires.MASTER)
        with closing(connect(invitation, agreed=AGREED)) as link:
            assert link.guarantee() == truth


@pytest.mark.parametrize("changed", [{"protected": False}, {"held": 3}, {"n_released": 10**6}])
def test_a_claim_that_cannot_be_is_none(changed):
    with closing(FederatedServer(AGREED)) as server:
        sent = server.guarantee().to_dict() | changed
    with pytest.raises(messages.MalformedError):
        messages.as_guarantee(sent, AGREED, 0)


def test_another_protocol_is_not_spoken():
    with greeted_by(wires.greeting(AGREED) | {"protocol": "privbo-federation/1"}) as calls:
        with pytest.raises(FederationError, match="same version"):
            connect(calls[0], agreed=AGREED)
        assert calls[1:] == ["greet"]


@pytest.mark.filterwarnings("error")
def test_a_federation_without_noise_is_not_joined_silently():
    with serving(1) as server:
        with pytest.warns(PrivacyWarning, match="adds no noise") as caught:
            connect(server.invitation(0)).close()
        assert caught[0].filename == __file__
        connect(server.invitation(0), agreed=server.config).close()


# Processes --------------------------------------------------------------------------------------


def test_a_round_ends_at_its_deadline_though_no_agent_waits(clock):
    with serving(3, deadline=0.5) as server:
        for n in (1, 2):
            with closing(connect(server.invitation(n))) as link:
                assert link.submit(vector(M, n)) == 1
        clock.now += 1
        eventually(lambda: len(server.broadcasts()) == 1)
        expected = (vector(M, 1) + vector(M, 2)) / 3
        np.testing.assert_allclose(server.broadcasts()[0].weights[0], expected, atol=1e-6)


def test_a_forked_agent_opens_a_connection_of_its_own(tmp_path):
    file = tmp_path / "found"
    with serving(1) as server:
        told = {"invitation": server.invitation(0), "file": str(file)}
        assert script("tests.engine.scenes:fork_an_agent", told).wait(PATIENCE) == 0
        assert json.loads(file.read_text()) == [[1, 2], 1, 1]
        assert as_json(server.broadcasts()[0]) == locally(1, [0])


def test_a_child_of_a_killed_server_does_not_keep_its_port(tmp_path):
    file, secret = tmp_path / "found", tmp_path / "secret"
    told = {"config": PLAIN | {"n_agents": 1}, "secret": str(secret), "file": str(file)}
    with script("tests.engine.scenes:fork_a_server", told) as process:
        eventually(file.exists)
        process.kill()
    port, child = json.loads(file.read_text())
    try:
        with serving(1, secret=secret, address=("127.0.0.1", port)) as server:
            with closing(connect(server.invitation(0))) as link:
                assert link.submit(np.ones(M)) == 1
    finally:
        os.kill(child, signal.SIGKILL)


def test_an_agent_whose_vector_was_lost_with_its_server_is_not_kept_waiting(tmp_path):
    """Though another agent has opened the same round again."""
    where = {"address": free_address(), "secret": tmp_path / "secret"}
    where |= {"deadline": None, "settings": PLAIN | {"n_regions": 2}}
    with serving(2, **where) as server:
        lost, other = (connect(server.invitation(n)) for n in range(2))
        assert lost.submit(np.ones(M)) == 1
    with serving(2, **where) as server, closing(lost), closing(other):
        assert other.submit(np.ones(M)) == 1
        assert lost.collect(1) is None
        assert lost.submit(np.ones(M)) == 1
        found = other.collect(1)
        assert as_json(found) == as_json(server.broadcasts()[0])
        assert found.weights.shape == (2, M)


# A ledger that was lost or put back ------------------------------------------------------------


def forget(_vault, _backup):
    pass


def put_back(vault, backup):
    shutil.copy(backup, vault)


def remove(vault, _backup):
    vault.unlink()


@pytest.mark.parametrize(
    ("durable", "damage"), [(False, forget), (True, put_back), (True, remove)]
)
def test_a_server_that_lost_its_ledger_is_found_out(durable, damage, tmp_path):
    config = FederationConfig(
        n_agents=1, epsilon=2.0, delta=1e-2, **PLAIN | {"z": None, "n_rounds": 2}
    )
    vault, backup = tmp_path / "server.db", tmp_path / "backup.db"
    url = f"sqlite:///{vault}" if durable else None
    address, secret = free_address(), tmp_path / "secret"
    received = []

    def begin():
        server = FederatedServer(config, vault=url, space=SPACE)
        server.listen(address, secret=secret)
        return server

    def send():
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


def test_an_agent_that_was_told_of_releases_misses_them(tmp_path):
    """Though it has collected none: a greeting, and the number of a round, tell too."""
    address, secret = free_address(), tmp_path / "secret"
    with serving(2, address=address, secret=secret, deadline=None) as server:
        for agent in (0, 1):
            assert server.connect(agent).submit(np.ones(M)) == 1
        greeted, counted = connect(server.invitation(0)), connect(server.invitation(1))
        assert counted.submit(np.ones(M)) == 2
    with serving(2, address=address, secret=secret), closing(greeted), closing(counted):
        for link in (greeted, counted):
            with pytest.raises(FederationError, match="lost its ledger"):
                link.submit(np.ones(M))


def test_a_server_made_before_another_released_is_taken_for_none_that_lost(tmp_path):
    vault, secret = f"sqlite:///{tmp_path / 'vault.db'}", tmp_path / "secret"
    address, config = free_address(), FederationConfig(n_agents=1, **PLAIN)
    with serving(1, address=address, secret=secret, vault=vault) as server:
        link = connect(server.invitation(0))
        second = FederatedServer(config, vault=vault, space=SPACE)
        assert link.submit(np.ones(M)) == 1
        assert link.collect(1) is not None
    second.listen(address, secret=secret)
    with closing(second), closing(link):
        assert len(link.broadcasts()) == 1
        assert link.submit(np.ones(M)) == 2


# Who is refused ---------------------------------------------------------------------------------


VECTOR = base64.b64encode(np.ones(M).tobytes()).decode()


def said(**fields):
    """A request, but for the epoch."""
    return wires.as_json(fields)


NONSENSE = {
    "not JSON": ("leave", b"\x00\xff garbage"), "too deep": ("leave", b"[" * 60000),
    "no vector": ("submit", said(key="k")),
    "half a number": ("submit", said(key="k", vector="AAAA")),
    "a long key": ("submit", said(key="k" * 65, vector=VECTOR)),
    "no round": ("collect", said(round=-1)), "no space": ("join", said(space=[1])),
    "true": ("broadcasts", said(after=True)),
    "no place in what was released": ("greet", said(last="1")),
}  # fmt: skip


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_is_answered_with_nothing(name):
    call, sent = NONSENSE[name]
    with serving(2, deadline=None) as server, closing(connect(server.invitation(1))) as link:
        with wires.Stranger(server.invitation(0)) as stranger:
            epoch = stranger.asks("greet", last=0)["result"]["epoch"]
            with suppress(ValueError, TypeError, RecursionError):
                sent = wires.as_json({"epoch": epoch} | json.loads(sent))
            assert stranger.says(call, sent) == ("INVALID_ARGUMENT", b"")
        assert link.submit(np.ones(M)) == 1
        assert server.broadcasts() == []  # the other agent has sent nothing


@pytest.mark.parametrize("call", ["close_round", "__init__", "_told", "invitation"])
def test_there_are_no_other_calls(call):
    with serving(1) as server, wires.Stranger(server.invitation(0)) as stranger:
        assert stranger.says(call, b"{}") == ("UNIMPLEMENTED", b"")


def test_a_request_that_is_too_long_is_not_read():
    with serving(2) as server, wires.Stranger(server.invitation(0)) as stranger:
        longest = 2**16 + 11 * M
        assert stranger.says("leave", b" " * longest)[0] == "INVALID_ARGUMENT"
        assert stranger.says("leave", b" " * (longest + 1)) == ("RESOURCE_EXHAUSTED", b"")
        with closing(connect(server.invitation(1))) as link:
            assert link.broadcasts() == []


@pytest.mark.parametrize(
    ("agent", "secret"),
    [
        (0, b"w" * 32), (0, b""), (1, None), (-1, None), ("", None), ("0x0", None), (2, None),
        ("9" * 900, None), ("\u0660".encode().hex(), None),
    ],
)  # fmt: skip
def test_whoever_proves_nothing_is_answered_nothing(agent, secret):
    with serving(2, deadline=None) as server, wires.Stranger(server.invitation(0)) as stranger:
        for call in wires.CALLS:
            told = stranger.says(call, said(last=0, key="k", vector=VECTOR), agent=agent,
                                 secret=secret)  # fmt: skip
            assert told == ("UNAUTHENTICATED", b"")
        with closing(connect(server.invitation(1))) as link:
            assert link.submit(np.ones(M)) == 1
        assert server.broadcasts() == []


def test_a_secret_opens_one_agent_of_one_run_of_one_server():
    def secret(invitation):
        return wires.secret_in(invitation)

    with serving(2, secret=bytes(range(32))) as server:
        own, other = server.invitation(0), server.invitation(1)
        assert secret(own) != secret(other)
        with serving(3, secret=bytes(range(32))) as longer:
            assert secret(longer.invitation(1)) == secret(other)
            former = longer.invitation(2)
        with serving(2, secret=bytes(range(32)), run_name="another") as another:
            assert wires.certificate_in(another.invitation(0)) == wires.certificate_in(own)
            assert secret(another.invitation(0)) != secret(own)
            elsewhere = secret(another.invitation(0))
        with wires.Stranger(own) as stranger:
            for agent, shown in ((1, None), (2, secret(former)), (0, elsewhere)):
                told = stranger.says("greet", b'{"last": 0}', agent=agent, secret=shown)
                assert told == ("UNAUTHENTICATED", b"")
        for wrong in (
            own.replace("/0?", "/1?"),
            wires.invitation(wires.address_in(own), 0, b"w" * 32, wires.certificate_in(own)),
        ):
            with pytest.raises(FederationError, match="new invitation"):
                connect(wrong)
        with closing(connect(own)) as link:
            assert link.config == server.config


def test_an_impostor_is_sent_nothing():
    """He listens at the server's address, with a certificate of his own that says its name."""
    heard = []

    def answer(_call, request, _metadata):
        heard.append(request)
        return b"{}"

    with serving(1) as server, wires.pretending(answer) as address:
        own = server.invitation(0)
        stolen = wires.invitation(address, 0, wires.secret_in(own), wires.certificate_in(own))
        with pytest.raises(FederationError, match="Nothing was sent"):
            connect(stolen)
        with closing(connect(own)) as link:
            assert link.broadcasts() == []
    assert heard == []


def test_many_threads_of_an_agent_leave_room_for_others(monkeypatch):
    monkeypatch.setattr(listening, "_WAITERS", 2)
    monkeypatch.setattr(listening, "_THREADS", 2)
    with serving(2, deadline=None) as server:
        waiting = []
        link = connect(server.invitation(0))
        assert link.submit(np.ones(M)) == 1
        threads = [
            threading.Thread(target=lambda: waiting.append(link.collect(1))) for _ in range(12)
        ]
        for thread in threads:
            thread.start()
        with closing(connect(server.invitation(1))) as other:
            assert other.submit(np.ones(M)) == 1
        for thread in threads:
            thread.join()
        assert [found.round for found in waiting] == [1] * 12
        link.close()


# Links ------------------------------------------------------------------------------------------


@pytest.fixture
def link(server):
    with closing(connect(server.invitation(0), agreed=server.config)) as made:
        yield made


def test_errors_pass_by_name_and_text(server, link):
    link.join(PUBLIC.to_dict())
    link.join(PUBLIC.to_dict())
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
def test_what_fails_inside_the_server_is_not_quoted(server, link, monkeypatch, error, text):
    def fail(*_):
        raise error

    monkeypatch.setattr(server.rounds, "broadcasts", fail)
    with pytest.raises(FederationError, match=text) as told:
        link.broadcasts()
    assert traces(str(told.value).encode()) == []
    monkeypatch.undo()
    assert link.broadcasts() == []


def test_a_vector_counts_once_though_another_came_in_between():
    """Of two threads of an agent, one repeats itself after the other's vector."""
    with serving(2, deadline=None) as server, wires.Stranger(server.invitation(0)) as stranger:
        assert stranger.asks("submit", key="a", vector=VECTOR) == {"result": 1}
        assert stranger.asks("submit", key="b", vector=VECTOR) == {"result": 1}
        assert server.connect(1).submit(np.ones(M)) == 1
        assert stranger.asks("submit", key="a", vector=VECTOR) == {"result": 1}
        server.close_round()  # there is none
        assert len(server.broadcasts()) == 1


def test_a_lost_connection_is_opened_again(server):
    with wires.dialled() as opened, closing(connect(server.invitation(0))) as link:
        assert link.submit(np.ones(M)) == 1
        opened[0].close()
        assert link.submit(np.ones(M)) == 2
        link.close()
        assert [b.round for b in link.broadcasts()] == [1, 2]
    assert len(opened) == 3


def test_a_server_begun_again_is_found_by_old_invitations(tmp_path):
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


@pytest.mark.parametrize(
    ("n_rounds", "page"), [(150, 2**12), pytest.param(10_000, None, marks=pytest.mark.soak)]
)
def test_however_much_was_released_an_agent_gets_in(n_rounds, page, monkeypatch):
    monkeypatch.setattr(messages, "PAGE_BYTES", page or messages.PAGE_BYTES)
    settings = PLAIN | {"n_rounds": n_rounds, "n_features": 2}
    with serving(1, settings=settings) as server:
        local = server.connect(0)
        for t in range(1, n_rounds):
            assert local.submit(np.full(2, t)) == t
        with closing(connect(server.invitation(0))) as link:
            assert len(link.broadcasts()) == n_rounds - 1
            assert link.submit(np.ones(2)) == n_rounds
            assert link.collect(n_rounds) is not None
            assert link.submit(np.ones(2)) is None


def test_a_vector_that_may_have_been_used_is_not_sent_again(tmp_path, monkeypatch):
    """The answer to it is lost, and the server is started again after its round's release."""
    vault, secret = f"sqlite:///{tmp_path / 'vault.db'}", tmp_path / "secret"
    with serving(1, secret=secret, vault=vault) as server:
        invitation = server.invitation(0)
        address, link = wires.address_in(invitation), connect(invitation)
        exchanged = link._calls._exchanged

        def lost(channel, call, request):
            told = exchanged(channel, call, request)
            if call != "submit" or not server.broadcasts() or again:
                return told
            server.close()
            again.append(stack.enter_context(serving(1, secret=secret, vault=vault,
                                                     address=address)))  # fmt: skip
            return None, grpc.StatusCode.UNAVAILABLE, "lost"

        again = []
        with ExitStack() as stack, closing(link):
            monkeypatch.setattr(link._calls, "_exchanged", lost)
            with pytest.raises(FederationError, match="is not sent again"):
                link.submit(vector(M, 0))
            assert len(again[0].broadcasts()) == 1
            assert link.submit(vector(M, 1)) == 2


def test_a_server_that_closes_releases_who_waits(monkeypatch):
    with serving(2, deadline=None) as server, closing(connect(server.invitation(0))) as link:
        assert link.submit(np.ones(M)) == 1
        errors = []
        waiting = threading.Event()

        def time_left():
            if threading.current_thread().name.startswith("federation-agent"):
                waiting.set()  # holds the lock until it waits
            return math.inf

        monkeypatch.setattr(server.rounds, "time_left", time_left)

        def wait():
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


def test_a_server_that_nobody_holds_ends():
    server = FederatedServer(FederationConfig(n_agents=1, **PLAIN), space=SPACE)
    server.listen()
    with closing(connect(server.invitation(0))) as link:
        assert link.broadcasts() == []
        del server
        gc.collect()
        with pytest.raises(FederationError):
            link.broadcasts()
    gc.disable()  # its threads end by themselves
    try:
        eventually(lambda: not working())
    finally:
        gc.enable()


# Secrets ----------------------------------------------------------------------------------------


def test_what_holds_a_secret_shows_none_and_is_neither_pickled_nor_copied(server, link):
    invitation = server.invitation(0)
    shown = f"{link!r} {link} {vars(link)} {server!r} {vars(server)}"
    assert invitation.split("#")[1] not in shown
    assert repr(wires.secret_in(invitation))[2:10] not in shown
    own, keys = identity.identity_of(bytes(range(32))), Keys.new()
    held = identity.Invitation(("127.0.0.1", 7000), 0, own.certificate, bytes(range(32)))
    assert not any(
        part.hex() in repr(keys) or repr(part) in repr(keys) for part in (keys.c, keys.s, keys.b)
    )
    for secret in (link, server, server.connect(0), own, held):
        for copied in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(PrivacyError, match=r"cannot be pickled|env:NAME"):
                copied(secret)
    for secret in (keys, Reader()):
        with pytest.raises(PrivacyError, match="cannot be pickled"):
            pickle.dumps(secret)


def test_an_invitation_may_lie_in_the_environment(server, monkeypatch):
    monkeypatch.setenv("FEDERATION", server.invitation(0) + "\n")
    with closing(connect("env:FEDERATION")) as link:
        assert link.agent == 0
    with pytest.raises(ValueError, match="'ELSEWHERE', which is not set"):
        connect("env:ELSEWHERE")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_an_invitation_is_read_as_it_was_written(host):
    if host == "::1" and not socket.has_ipv6:
        pytest.skip("no IPv6 on this machine")
    with serving(8, address=(host, 0)) as server:
        written = server.invitation(7)
        assert (wires.agent_in(written), len(wires.secret_in(written))) == (7, 32)
        with closing(connect(written)) as link:
            assert (link.agent, link.config) == (7, server.config)


def test_a_secret_file_is_for_its_user_alone(tmp_path, monkeypatch):
    path = tmp_path / "secret"
    with serving(1, secret=path) as server:
        held, invitation = path.read_bytes(), server.invitation(0)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "exists", lambda _: False)  # another server is faster
        with serving(1, secret=path) as server:
            assert server.invitation(0).split("#")[1] == invitation.split("#")[1]
    assert (path.read_bytes(), os.listdir(tmp_path)) == (held, ["secret"])
    server = FederatedServer(FederationConfig(n_agents=1, **PLAIN), space=SPACE)
    path.chmod(0o640)
    with pytest.raises(PrivacyError, match="can be read by other users"):
        server.listen(secret=path)
    for wrong in (b"short", b"0" * 32, b"passwordpassword"[:8] * 4, tmp_path / "no" / "where"):
        with pytest.raises(ValueError, match="secret"):
            server.listen(secret=wrong)
    with pytest.raises(ValueError, match="does not listen"):
        server.invitation(0)


def test_addresses_that_cannot_be_used():
    with serving(1) as server:
        with pytest.raises(ValueError, match="listens already"):
            server.listen()
        other = FederatedServer(FederationConfig(n_agents=1, **PLAIN), space=SPACE)
        taken = wires.address_in(server.invitation(0))
        for address, why in ((taken, "in use"), (("192.0.2.1", 0), "assign")):
            with pytest.raises(FederationError, match=f"cannot listen on .*{why}"):
                other.listen(address)
        with closing(connect(server.invitation(0))) as link:
            assert link.broadcasts() == []


def test_a_server_on_every_address_says_which_one_to_use():
    server = FederatedServer(FederationConfig(n_agents=1, **PLAIN), space=SPACE)
    _, port = server.listen(("0.0.0.0", 0))
    with pytest.raises(ValueError, match="which one agents reach it by"):
        server.invitation(0)
    invitation = server.invitation(0, address=("127.0.0.1", int(port)))
    with closing(connect(invitation)) as link:
        assert link.broadcasts() == []
    server.close()
    server.listen()  # again, elsewhere
    server.close()


def test_who_comes_first_does_not_say_what_all_tune():
    server = FederatedServer(FederationConfig(n_agents=2, **PLAIN))
    with pytest.raises(ValueError, match=r"FederatedServer\(space=\.\.\.\)"):
        server.listen()


# Certificates of institutions -------------------------------------------------------------------


def issued(folder, name, ca=None, *, key=None, days=9, more=None):
    """Files of a certificate and its key, and what signs with it; signed by ``ca`` or itself."""
    limits = more or x509.BasicConstraints(ca is None, None)
    key = key or ec.generate_private_key(ec.SECP256R1())
    own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer, signer = (own, key) if ca is None else ca
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(issuer, own)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=30))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(limits, critical=True)
        .sign(signer, hashes.SHA256())
    )
    cert, private = folder / f"{name}.pem", folder / f"{name}.key"
    cert.write_bytes(made.public_bytes(Encoding.PEM))
    private.touch(0o600)
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return cert, private, (own, key)


def test_an_institution_gives_a_certificate_of_its_own(tmp_path):
    _, _, ca = issued(tmp_path, "authority.example")
    cert, key, _ = issued(tmp_path, "federation.hospital.example", ca)
    other, its_key, _ = issued(tmp_path, "other.hospital.example", ca)
    server = FederatedServer(FederationConfig(n_agents=1, **PLAIN), space=SPACE)
    server.listen(secret=bytes(range(32)), cert=cert, key=key)
    invitation = server.invitation(0)
    with closing(server), closing(connect(invitation)) as link:
        assert link.submit(np.ones(M)) == 1
    with pytest.raises(ValueError, match="not the private key"):
        server.listen(cert=cert, key=its_key)
    for missing in ({"cert": cert}, {"key": key}):
        with pytest.raises(ValueError, match="belong together"):
            server.listen(**missing)
    key.chmod(0o644)
    with pytest.raises(PrivacyError, match="can be read by other users"):
        server.listen(cert=cert, key=key)
    server.listen(wires.address_in(invitation), secret=bytes(range(32)), cert=other, key=its_key)
    with closing(server), pytest.raises(FederationError, match="new invitation"):
        connect(invitation)  # the same authority's


def test_a_certificate_that_nobody_could_use_is_refused(tmp_path):
    server = FederatedServer(FederationConfig(n_agents=1, **PLAIN), space=SPACE)
    short = rsa.generate_private_key(65537, 1024)
    for name, more, message in (
        ("late", {"days": -1}, "which is not now"),
        ("weak", {"key": short}, "RSA key of 2048 bits"),
        ("odd", {"key": ec.generate_private_key(ec.SECP256K1())}, "P-256/P-384"),
    ):
        cert, key, _ = issued(tmp_path, f"{name}.example", **more)
        with pytest.raises(ValueError, match=message):
            server.listen(cert=cert, key=key)


SIGNS = x509.KeyUsage(
    digital_signature=True, content_commitment=False, key_encipherment=False,
    data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=False,
    encipher_only=False, decipher_only=False,
)  # fmt: skip


@pytest.mark.parametrize("more", [x509.BasicConstraints(True, None), SIGNS])
def test_an_authoritys_certificate_is_nobodys_own(tmp_path, more):
    """A server's, an agent's and an invitation's: whatever it signs would be accepted as that."""
    cert, key, _ = issued(tmp_path, "authority.example", more=more)
    with serving(1, secret=bytes(range(32))) as server:
        invitation = server.invitation(0)
        with pytest.raises(ValueError, match="cert= is an authority's"):
            connect(invitation, cert=cert, key=key)
    with pytest.raises(ValueError, match="cert= is an authority's"):
        server.listen(cert=cert, key=key)
    der = x509.load_pem_x509_certificate(cert.read_bytes()).public_bytes(Encoding.DER)
    forged = wires.invitation(("127.0.0.1", 7), 0, wires.secret_in(invitation), der)
    with pytest.raises(ValueError, match="names an authority's certificate"):
        connect(forged)


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o720, "another user's"])
@pytest.mark.parametrize("what", ["secret", "key", "cert", "client_ca", "agent"])
def test_a_folder_into_which_others_can_write_holds_nothing_of_an_identity(
    tmp_path, what, mode, monkeypatch
):
    _, _, ca = issued(tmp_path, "authority.example")
    folder = tmp_path / "open"
    folder.mkdir()
    cert, key, _ = issued(tmp_path, "own.example", ca)
    there, its_key, _ = issued(folder, "own.example", ca)
    given = {
        "secret": {"secret": folder / "secret"},
        "key": {"cert": cert, "key": its_key},
        "cert": {"cert": there, "key": key},
        "client_ca": {"client_ca": there},
        "agent": {"cert": cert, "key": its_key},
    }[what]
    own = os.geteuid()
    if mode != "another user's":
        folder.chmod(mode)
    elif own == 0:
        os.chown(folder, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    server = FederatedServer(FederationConfig(n_agents=1, **PLAIN), space=SPACE)
    refused = pytest.raises(PrivacyError, match="Other users can write into")
    with closing(server):
        if what == "agent":
            server.listen()
            with refused:
                connect(server.invitation(0), **given)
        else:
            with refused:
                server.listen(**given)
    assert not (folder / "secret").exists()
    if what == "secret" and mode == 0o770:
        folder.chmod(0o1777)  # as /tmp: others write there, and replace nothing
        with serving(1, secret=folder / "secret"):
            assert (folder / "secret").exists()


@pytest.mark.parametrize("writable", ["file", "folder above", "behind a link"])
def test_an_authority_that_others_can_replace_is_none(tmp_path, writable):
    folder = tmp_path / "above" / "folder"
    folder.mkdir(parents=True)
    authority, _, _ = issued(folder, "authority.example")
    changed = authority if writable == "file" else folder.parent
    if writable == "behind a link":
        (tmp_path / "own").mkdir()
        (tmp_path / "own" / "ca.pem").symlink_to(authority)
        authority = tmp_path / "own" / "ca.pem"
    changed.chmod(changed.stat().st_mode | 0o020)
    with closing(FederatedServer(FederationConfig(n_agents=1, **PLAIN), space=SPACE)) as server:
        with pytest.raises(PrivacyError, match="Other users can write into"):
            server.listen(client_ca=authority)


def test_without_agreed_settings_the_guarantee_says_whose_word_they_are():
    with serving(2) as server:
        for agent, agreed in enumerate((None, server.config)):
            with closing(connect(server.invitation(agent), agreed=agreed)) as link:
                told = any("the server's word" in note for note in link.guarantee().notes)
                assert told is (agreed is None)


def test_a_server_may_ask_agents_for_certificates_too(tmp_path):
    authority, _, ca = issued(tmp_path, "authority.example")
    cert, key, _ = issued(tmp_path, "agent.example", ca)
    _, _, elsewhere = issued(tmp_path, "elsewhere.example")
    stranger, its_key, _ = issued(tmp_path, "stranger.example", elsewhere)
    server = FederatedServer(FederationConfig(n_agents=1, **PLAIN), space=SPACE)
    server.listen(client_ca=authority)
    with closing(server):
        invitation = server.invitation(0)
        with closing(connect(invitation, cert=cert, key=key)) as link:
            assert link.submit(np.ones(M)) == 1
        for shown in ({}, {"cert": stranger, "key": its_key}):
            with pytest.raises(FederationError):
                connect(invitation, **shown)
    with pytest.raises(ValueError, match="client_ca"):
        server.listen(client_ca=its_key)
