"""The encrypted side of a federation's server that agents in other processes reach: gRPC over TLS.

Each agent shows a secret of its own with each call. A call that names another *epoch* than this
process's is not acted on: the agent is asked to greet first, and learns what this server has
released. :mod:`~privbo_plugins.federation.remote` is the agents' side.
"""

from __future__ import annotations

import atexit
import hashlib
import hmac
import math
import os
import secrets
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from privbo_plugins.algorithms.dp_fts_de.config import FederationConfig
from privbo_plugins.algorithms.dp_fts_de.server import Broadcast
from privbo_plugins.federation import messages, sockets
from privbo_plugins.federation.identity import Address, Identity, Invitation, place
from privbo_plugins.federation.limits import Bodies, Crowd
from privbo_plugins.federation.messages import MalformedError
from privbo_plugins.federation.sockets import OPTIONS, SERVICE, grpc

if TYPE_CHECKING:
    from privbo_plugins.sessions.rounds import Rounds

_POLL = 5.0
"""Seconds that an agent's question for the end of a round rests here."""
_WAITERS = 8
"""Such questions of one agent, which may run threads; further ones do not rest."""
_CALLS = 24
"""Calls of one agent under way; it may run threads, and may mean no good."""
_KEYS = 256
"""Vectors of one agent that are known again if they are sent again."""
_BODY = 15.0
"""Seconds for the body of a request."""
_THREADS, _MOST_THREADS = 64, 4096
_OPTIONS = [
    *OPTIONS,
    ("grpc.server_handshake_timeout_ms", 15_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.max_metadata_size", 4096),
]


class Listener:
    """Answers agents of other processes; made by :meth:`FederatedServer.listen`.

    It holds the server's rounds weakly: they end when nothing else holds them, and the listener
    with them.

    Args:
        rounds: Of the server.
        address: Where to listen.
        identity: What it proves itself with.
        run: Name of the run, hashed; agents' secrets hold for it alone.

    Raises:
        FederationError: If the address cannot be used.
        ValueError: If its broadcasts are too long to be sent.
    """

    def __init__(self, rounds: Rounds, address: Address, identity: Identity, run: str) -> None:
        self.config, self.deadline = rounds.config, rounds.deadline
        _check_size(self.config)
        self.epoch = secrets.token_hex(16)
        self.rounds: Callable[[], Rounds | None] = weakref.ref(rounds)
        self._identity, self._run = identity, run
        self._pid = os.getpid()
        self._closing, self._bell = threading.Event(), threading.Event()
        self._submitting, self._chaining = threading.Lock(), threading.Lock()
        self._submitted: dict[int, OrderedDict[str, int | None]] = {}
        self._calls, self._waiting, self._bodies = Crowd(_CALLS), Crowd(_WAITERS), Bodies(_BODY)
        self._chain: list[str] = []
        threads = min(_THREADS + _CALLS * self.config.n_agents, _MOST_THREADS)
        self._pool = ThreadPoolExecutor(threads, initializer=_named)
        self._grpc = grpc.server(self._pool, options=[
            *_OPTIONS,
            ("grpc.max_receive_message_length", messages.request_size(self.config)),
        ])  # fmt: skip
        calls = (
            "greet", "join", "submit", "enter", "turn", "collect", "broadcasts", "leave",
            "guarantee",
        )  # fmt: skip
        handlers = {call: self._handler(getattr(self, f"_{call}")) for call in calls}
        self._grpc.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, handlers),)
        )
        self.address = self._bound(address)
        with rounds.lock:
            rounds.ledger.read()
        self._grpc.start()
        self._thread = threading.Thread(target=self._watch, name="federation", daemon=True)
        self._thread.start()
        _LISTENERS.add(self)
        # Rounds that nothing holds are ended by whichever thread drops it, so nothing is joined.
        weakref.finalize(rounds, self._end).atexit = False

    def __repr__(self) -> str:
        return f"Listener({place(self.address)!r})"

    def _bound(self, address: Address) -> Address:
        client_ca = self._identity.client_ca
        proof = grpc.ssl_server_credentials(
            [(self._identity.key, self._identity.chain)], client_ca, client_ca is not None
        )
        return sockets.bound(address, lambda target: self._grpc.add_secure_port(target, proof))

    def invitation(self, agent: int, address: Address | None) -> str:
        """Writes the invitation of one agent; see :meth:`FederatedServer.invitation`."""
        reached = self.address if address is None else address
        if reached[0] in ("0.0.0.0", "::"):
            raise ValueError(
                f"The server listens on every address of this machine ({place(reached)}): say "
                "which one agents reach it by, invitation(agent, address=(host, port))."
            )
        secret = self._identity.secret_of(self._run, agent)
        return Invitation(reached, agent, self._identity.certificate, secret).text()

    # Calls --------------------------------------------------------------------------------------

    def _handler(self, act: Callable[..., Any]) -> Any:
        def answer(requests: Iterator[bytes], context: Any) -> bytes:
            code, reply = self._told(act, context.invocation_metadata(), requests, context.cancel)
            context.set_code(code)
            return reply

        # Of one request, on the wire as any other call; but who asks is known before its body is
        # waited for, which a stranger may never send.
        return grpc.stream_unary_rpc_method_handler(answer)

    def _told(
        self,
        act: Callable[..., Any],
        metadata: Any,
        requests: Iterator[bytes],
        cancel: Callable[[], Any],
    ) -> tuple[Any, bytes]:
        """Status and reply; raises nothing, because gRPC would log text and frames."""
        agent = self._admitted(metadata)
        if agent is None:
            return grpc.StatusCode.UNAUTHENTICATED, b""
        with self._calls.one(agent) as room:
            if not room:
                return grpc.StatusCode.RESOURCE_EXHAUSTED, b""
            try:
                request = messages.decoded(self._bodies.read(requests, cancel))
                return grpc.StatusCode.OK, messages.encoded(self._reply(act, agent, request))
            except MalformedError:
                return grpc.StatusCode.INVALID_ARGUMENT, b""
            except EOFError:
                return grpc.StatusCode.UNAVAILABLE, b""

    def _admitted(self, metadata: Any) -> int | None:
        """The agent that has shown its secret."""
        given = {key: value for key, value in metadata if key.startswith("privbo-")}
        number, secret = given.get("privbo-agent"), given.get("privbo-secret-bin")
        if not (isinstance(number, str) and number.isascii() and number.isdecimal()):
            return None
        agent = int(number[:10])
        expected = self._identity.secret_of(self._run, agent)
        known = isinstance(secret, bytes) and hmac.compare_digest(expected, secret)
        return agent if known and agent < self.config.n_agents else None

    def _reply(
        self, act: Callable[..., Any], agent: int, request: dict[str, Any]
    ) -> dict[str, Any]:
        rounds = self.rounds()
        if rounds is None or self._closing.is_set():
            raise EOFError
        if act != self._greet and request.get("epoch") != self.epoch:
            return {"again": True}
        try:
            return {"result": act(rounds, agent, request)}
        except (MalformedError, EOFError):
            raise
        except Exception as error:
            return {"error": messages.told(error)}

    def _greet(self, rounds: Rounds, _agent: int, request: dict[str, Any]) -> Any:
        chain = self._chain_of(rounds)
        last = messages.count(request.get("last"))
        return {
            "protocol": messages.PROTOCOL,
            "epoch": self.epoch,
            "config": self.config.to_dict(),
            "deadline": self.deadline,
            "released": len(chain),
            "chain": chain[last - 1] if 1 <= last <= len(chain) else None,
        }

    def _chain_of(self, rounds: Rounds) -> list[str]:
        """For each round the digest of all that was released up to it."""
        released = rounds.broadcasts()
        with self._chaining:
            for broadcast in released[len(self._chain) :]:
                before = self._chain[-1] if self._chain else ""
                linked = hashlib.sha256(f"{before} {broadcast.digest()}".encode()).hexdigest()
                self._chain.append(linked)
            return self._chain[: len(released)]

    def _join(self, rounds: Rounds, _agent: int, request: dict[str, Any]) -> None:
        rounds.agree(messages.space(request.get("space")))

    def _submit(self, rounds: Rounds, agent: int, request: dict[str, Any]) -> int | None:
        """Submits once, however often an agent that lost its connection repeats itself.

        Without the key, the repetition of a message that completed its round would open the next.
        """
        key, vector = messages.token(request.get("key")), messages.unpacked(request.get("vector"))
        with self._submitting:
            known = self._submitted.setdefault(agent, OrderedDict())
            if key not in known:
                known[key] = rounds.submit(agent, vector)
                if len(known) > _KEYS:
                    known.popitem(last=False)
            t = known[key]
        self._bell.set()  # a round may have been opened: somebody has to watch its deadline
        return t

    def _collect(self, rounds: Rounds, agent: int, request: dict[str, Any]) -> Any:
        t, sender = messages.count(request.get("round")), agent if request.get("sent") else None
        with self._waiting.one(agent) as room:
            patience = _POLL if room else 0.0
            found = rounds.collect(t, sender=sender, ended=self._closing, patience=patience)
        if self._closing.is_set():
            raise EOFError
        if isinstance(found, Broadcast):
            return messages.of_broadcast(found, self._chain_of(rounds)[t - 1])
        return found if found is None else {"waiting": True}

    def _enter(self, rounds: Rounds, agent: int, request: dict[str, Any]) -> Any:
        found = rounds.enter(agent, request)
        self._bell.set()
        return found

    def _turn(self, rounds: Rounds, agent: int, request: dict[str, Any]) -> Any:
        with self._waiting.one(agent) as room:
            found = rounds.turn(agent, request, self._closing, _POLL if room else 0.0)
        self._bell.set()
        if self._closing.is_set():
            raise EOFError
        return found

    def _broadcasts(self, rounds: Rounds, _agent: int, request: dict[str, Any]) -> Any:
        after = messages.count(request.get("after"))
        chain, known = self._chain_of(rounds), rounds.broadcasts()
        n = max(1, messages.PAGE_BYTES // messages.broadcast_size(self.config))
        page = list(zip(known, chain, strict=False))[after : after + n]
        return {
            "page": [messages.of_broadcast(*one) for one in page],
            "more": after + len(page) < len(chain),
        }

    def _leave(self, rounds: Rounds, agent: int, _request: dict[str, Any]) -> None:
        rounds.leave(agent)

    def _guarantee(self, rounds: Rounds, _agent: int, _request: dict[str, Any]) -> Any:
        return rounds.guarantee().to_dict()

    # Deadlines and the end ----------------------------------------------------------------------

    def _watch(self) -> None:
        """Closes rounds that are over their deadline, and ends calls that send nothing."""
        while not self._closing.is_set():
            self._bell.wait(min(_POLL, self._time_left()))
            self._bell.clear()
            self._bodies.cancel_late()
        self._grpc.stop(None).wait()
        self._pool.shutdown(wait=False)  # idle threads would stay until garbage is collected

    def _time_left(self) -> float:
        rounds = self.rounds()
        if rounds is None:
            return math.inf
        try:
            rounds.poll()
        except Exception:
            return 1.0  # the vault may come back; agents are answered meanwhile
        with rounds.lock:
            return max(0.0, rounds.time_left())

    def _end(self) -> threading.Event | None:
        """Tells every call to end, without waiting for it; None in a forked child."""
        if os.getpid() != self._pid:  # which has none of these threads
            return None
        self._closing.set()
        self._bell.set()
        return self._grpc.stop(None)  # type: ignore[no-any-return]

    def close(self, timeout: float | None = None) -> None:
        """Stops listening, ends all calls and waits for their threads."""
        _LISTENERS.discard(self)
        ended = self._end()
        if ended is None:
            return
        rounds = self.rounds()
        if rounds is not None:
            with rounds.lock:
                rounds.lock.notify_all()
        ended.wait(timeout)
        self._thread.join(timeout)
        self._pool.shutdown(wait=timeout is None)


def _named() -> None:
    threading.current_thread().name = "federation-agent"


_LISTENERS: weakref.WeakSet[Listener] = weakref.WeakSet()


@atexit.register
def _at_exit() -> None:
    for listener in list(_LISTENERS):
        listener.close(timeout=5.0)


def _check_size(config: FederationConfig) -> None:
    if messages.broadcast_size(config) > messages.LARGEST - messages.ROOM:
        raise ValueError(
            f"A broadcast of {config.n_regions} regions and {config.message_length} numbers is "
            f"longer than {messages.LARGEST} bytes: use fewer regions or n_features."
        )
