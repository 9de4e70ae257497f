"""The way between agents in processes of their own and a federation's server.

A connection carries frames: four bytes of length, then JSON. Vectors are base64 of little-endian
float64, so they arrive bit for bit. Nothing is ever unpickled, frames are limited by what the
federation's settings make possible, and whoever sends something else loses this connection and
disturbs nobody.

Each agent has a secret of its own, which the server derives from one master secret. Both sides
prove that they know it, over two nonces, before anything else is said: the server cannot be
impersonated by another agent, and the secret itself never travels. What travels afterwards is
**not encrypted**. The loopback device and Unix sockets stay on the machine; between machines put
the connection into a tunnel (``ssh -L``, WireGuard).
"""

from __future__ import annotations

import atexit
import base64
import hmac
import ipaddress
import json
import os
import secrets
import socket
import stat
import struct
import threading
import urllib.parse
import warnings
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.dp_fts_de.config import FederationConfig
from privbo_plugins.algorithms.dp_fts_de.server import Broadcast
from privbo_plugins.errors import (
    BudgetExceededError,
    FederationError,
    PrivacyError,
    PrivacyWarning,
    SpaceChangedError,
    VaultError,
)
from privbo_plugins.privacy.guarantee import FederationGuarantee
from privbo_plugins.redaction import public_name
from privbo_plugins.spaces import Space

if TYPE_CHECKING:
    from privbo_plugins.sessions.rounds import FederatedServer

T = TypeVar("T")
Array = NDArray[np.float64]
Address = tuple[str, int] | str
"""Host and port, or the path of a Unix socket."""

_PROTOCOL = "privbo-federation/1"
_HEADER = struct.Struct("!I")
_HANDSHAKE = 1024
"""Bytes that somebody who has proven nothing may send at once."""
_ROOM = 2**16
"""Bytes of a frame for everything but vectors."""
_PAGE = 64
"""Broadcasts in one frame."""
_NO_LOSS = 1e100
"""No epsilon that somebody claims is larger."""
_PATIENCE = 30.0
"""Seconds for a step of the handshake."""
_BUSY = 120.0
"""Seconds for an answer, beyond what a round may take; a database may be locked for 60."""
_CONNECTIONS = 64
"""Of one agent, which may fork and run threads; and of all who have not proven who they are."""

_TOLD: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        BudgetExceededError,
        FederationError,
        PrivacyError,
        SpaceChangedError,
        ValueError,
    )
}
"""Errors that pass by name and text."""

_VAULT_FAILED = (
    "The federation's server cannot use its vault. Nothing was published; the server's operator "
    "needs the database back. Until then agents can go on alone."
)

# Frames -----------------------------------------------------------------------------------------


class _MalformedError(Exception):
    """What the other side sent is no message; carries nothing of it."""


def _send(sock: socket.socket, message: Mapping[str, Any]) -> None:
    data = json.dumps(message).encode()
    sock.sendall(_HEADER.pack(len(data)) + data)


def _receive(sock: socket.socket, limit: int) -> dict[str, Any]:
    size = _HEADER.unpack(_read(sock, _HEADER.size))[0]
    if size > limit:
        raise _MalformedError
    frame = _read(sock, size)
    try:
        message = json.loads(frame)
    except (ValueError, RecursionError):
        message = None  # raised below: the parser's own error holds the frame
    if not isinstance(message, dict):
        raise _MalformedError
    return message


def _read(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = sock.recv(min(size - len(data), 2**16))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)


def _packed(numbers: Array) -> str:
    return base64.b64encode(np.ascontiguousarray(numbers, dtype="<f8").tobytes()).decode()


def _unpacked(text: Any) -> Array:
    try:
        data = base64.b64decode(text, validate=True)
    except (TypeError, ValueError):
        data = b"?"
    if len(data) % 8:
        raise _MalformedError
    return np.frombuffer(data, dtype="<f8").astype(np.float64)


def _text(value: Any) -> str:
    """A short token."""
    if not isinstance(value, str) or not value.isascii() or len(value) > 64:
        raise _MalformedError
    return value


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise _MalformedError
    return value


def _loss(value: Any) -> float:
    """An epsilon or a delta; infinity where nothing is claimed."""
    if not (0 <= (loss := float(value)) <= _NO_LOSS or loss == np.inf):
        raise _MalformedError
    return loss


def _space(value: Any) -> dict[str, Any]:
    """The description of a space; the first agent's is taken for all, so it must be one."""
    try:
        Space.from_dict(value)
    except Exception:
        value = None
    if not isinstance(value, dict):
        raise _MalformedError
    return value


def _broadcast_to_wire(broadcast: Broadcast) -> dict[str, Any]:
    return {
        "round": broadcast.round,
        "weights": _packed(broadcast.weights),
        "noise": _packed(broadcast.noise),
    }


def _understood(read: Callable[[Any], T], sent: Any) -> T:
    """What an answer says.

    Raises:
        _MalformedError: If it is none; its text and its frames hold nothing of the answer.
    """
    try:
        return read(sent)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        pass
    raise _MalformedError


def _broadcast_from_wire(sent: Mapping[str, Any], config: FederationConfig) -> Broadcast:
    weights = _unpacked(sent["weights"]).reshape(config.n_regions, config.message_length)
    noise = _unpacked(sent["noise"]).reshape(config.n_regions)
    if not (np.isfinite(weights).all() and np.isfinite(noise).all()):
        raise _MalformedError
    return Broadcast(_count(sent["round"]), weights, noise)


def _guarantee_from_wire(sent: Mapping[str, Any]) -> FederationGuarantee:
    given = {f.name: sent[f.name] for f in fields(FederationGuarantee)}
    for name in ("epsilon", "epsilon_spent", "delta"):
        given[name] = _loss(given[name])
    for name in ("n_agents", "n_rounds", "n_released"):
        given[name] = _count(given[name])
    for name in ("not_covered", "reasons", "notes"):
        given[name] = _texts(given[name])
    for name, kind in (("protected", bool), ("held", bool), ("parameters", dict)):
        if not isinstance(given[name], kind):
            raise _MalformedError
    return FederationGuarantee(**given)


def _greeting_from_wire(
    answer: Mapping[str, Any],
) -> tuple[FederationConfig, float | None, tuple[str, ...]]:
    """Settings, a round's deadline in seconds, and digests of what was released."""
    deadline = answer["deadline"]
    if deadline is not None and (isinstance(deadline, str) or not float(deadline) >= 0):
        raise _MalformedError
    return FederationConfig.from_dict(answer["config"]), deadline, _texts(answer["released"])


def _texts(sent: Any) -> tuple[str, ...]:
    if not (isinstance(sent, list) and all(isinstance(text, str) for text in sent)):
        raise _MalformedError
    return tuple(sent)


def _request_limit(config: FederationConfig) -> int:
    return _ROOM + 11 * config.message_length


def _reply_limit(config: FederationConfig) -> int:
    return _ROOM + _PAGE * (11 * config.n_regions * (config.message_length + 1) + 128)


# Secrets and invitations ------------------------------------------------------------------------


def _master(secret: bytes | str | os.PathLike[str] | None) -> bytes:
    """The master secret: a new one, the one given, or what a file holds."""
    if secret is None:
        return secrets.token_bytes(32)
    if not isinstance(secret, bytes):
        secret = _secret_in_file(Path(secret))
    if len(secret) < 16:
        raise ValueError(
            "secret must have at least 16 bytes: secrets.token_bytes(32), or the path of a file "
            "that is to be created."
        )
    return secret


def _secret_in_file(path: Path) -> bytes:
    try:
        if not path.exists():
            _create_secret(path)
        with open(path, "rb") as file:
            facts = os.fstat(file.fileno())
            if stat.S_IMODE(facts.st_mode) & 0o077 or facts.st_uid != os.geteuid():
                raise PrivacyError(
                    f"The secret file {path} can be read by other users, who could speak for any "
                    "agent. Delete it, so that a new one is made, and hand out new invitations."
                )
            return file.read()
    except OSError as error:
        raise ValueError(
            f"The secret file {path} cannot be read or created: {_reason(error)}. Give a path in "
            "a directory that this user may write."
        ) from None


def _create_secret(path: Path) -> None:
    """Writes beside the path and links, so that another server never reads half a secret."""
    beside = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    descriptor = os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(secrets.token_bytes(32))
            file.flush()
            os.fsync(file.fileno())
        os.link(beside, path)
    except FileExistsError:
        pass  # another server was faster: its secret counts
    finally:
        os.unlink(beside)


def _secret_of(master: bytes, run_id: str, agent: int) -> bytes:
    return hmac.digest(master, f"{_PROTOCOL} {run_id} {agent}".encode(), "sha256")


def _proof(secret: bytes, side: str, agent: int, asked: str, asking: str) -> str:
    """What only a holder of the secret can say; ``side`` keeps it from being sent back."""
    return hmac.digest(secret, f"{side} {agent} {asked} {asking}".encode(), "sha256").hex()


def _same(proof: str, sent: Any) -> bool:
    return isinstance(sent, str) and sent.isascii() and hmac.compare_digest(proof, sent)


def _reason(error: Exception) -> str:
    """Why a file or socket failed, as the system says it."""
    if isinstance(error, _MalformedError):
        return "it speaks another protocol"
    return getattr(error, "strerror", None) or public_name(error)


def _place(address: Address) -> str:
    if isinstance(address, str):
        return address
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True)
class _Invitation:
    """What one agent is given by the operator."""

    address: Address
    agent: int
    secret: bytes = field(repr=False)

    def text(self) -> str:
        key = base64.urlsafe_b64encode(self.secret).decode().rstrip("=")
        if isinstance(self.address, str):
            path = urllib.parse.quote(os.path.abspath(self.address))
            return f"privbo+unix://{path}/{self.agent}#{key}"
        return f"privbo://{_place(self.address)}/{self.agent}#{key}"


def _invitation_from(text: str) -> _Invitation:
    """Reads an invitation or what an environment variable holds; errors never repeat it."""
    if text.startswith("env:"):
        name = text.removeprefix("env:")
        text = _variable(name)
        if not text and name.isidentifier():  # anything else may be an invitation by mistake
            raise ValueError(
                f"connect('env:{name}') takes the invitation from the environment variable "
                f"{name!r}, which is not set in this process."
            )
    try:
        return _parsed(text.strip())
    except (ValueError, LookupError):
        pass  # raised below: the parser's own error may quote the secret
    raise ValueError(
        "This is not an invitation. Pass the text that server.invitation(agent) gave, unchanged, "
        "or 'env:NAME' for the text in an environment variable."
    )


def _variable(name: str) -> str:
    try:
        return os.environ.get(name, "")
    except ValueError:  # no system could hold this name
        return ""


def _parsed(text: str) -> _Invitation:
    parts = urllib.parse.urlsplit(text)
    path, _, agent = parts.path.rpartition("/")
    secret = base64.b64decode(parts.fragment + "=", altchars=b"-_", validate=True)
    if len(secret) != 32 or not agent.isdecimal():
        raise ValueError
    if parts.scheme == "privbo+unix" and path and "\0" not in urllib.parse.unquote(path):
        return _Invitation(urllib.parse.unquote(path), int(agent), secret)
    if parts.scheme != "privbo" or not parts.hostname or not parts.port or path:
        raise ValueError
    parts.hostname.encode("idna")  # as a socket will
    return _Invitation((parts.hostname, parts.port), int(agent), secret)


# Sockets ----------------------------------------------------------------------------------------


def _warn_if_seen(address: Address) -> None:
    """Warns if what is sent to an address leaves the machine."""
    if isinstance(address, str) or address[0] == "localhost":
        return
    try:
        stays = ipaddress.ip_address(address[0]).is_loopback
    except ValueError:
        stays = False  # a name, or every address
    if not stays:
        warnings.warn(
            f"Agents' vectors travel unencrypted to {_place(address)}: whoever sees the network "
            "sees them. Listen on 127.0.0.1 or a Unix socket, and let agents on other machines "
            "in through a tunnel (ssh -L, WireGuard).",
            PrivacyWarning,
            stacklevel=4,
        )


def _bind(address: Address) -> socket.socket:
    try:
        if isinstance(address, str):
            return _bind_unix(address)
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        return socket.create_server(address, family=family, backlog=128)
    except OSError as error:
        raise FederationError(
            f"The server cannot listen on {_place(address)}: {_reason(error)}. Give another "
            "address=, or end what uses it."
        ) from None


def _bind_unix(path: str) -> socket.socket:
    """A socket that only this user can connect to, in place of one that a dead server left."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), mode=0o700, exist_ok=True)
    sock = socket.socket(socket.AF_UNIX)
    try:
        if _is_left_over(path):
            os.unlink(path)
        sock.bind(path)
        os.chmod(path, 0o600)  # before it listens: until then nobody can connect
        sock.listen(128)
    except BaseException:
        sock.close()
        raise
    return sock


def _is_left_over(path: str) -> bool:
    if not os.path.exists(path) or not stat.S_ISSOCK(os.stat(path).st_mode):
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(path) != 0


def _dial(address: Address) -> socket.socket:
    if not isinstance(address, str):
        return socket.create_connection(address, timeout=_PATIENCE)
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(_PATIENCE)
        sock.connect(address)
    except BaseException:
        sock.close()
        raise
    return sock


def _tune(sock: socket.socket) -> None:
    """Small frames leave at once, and a machine that is gone is noticed within minutes."""
    if sock.family == getattr(socket, "AF_UNIX", None):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _shut(sock: socket.socket) -> None:
    """Wakes whoever reads from it; the descriptor is closed by the thread that owns it."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it has ended by itself


# The server's side ------------------------------------------------------------------------------


class _Connection:
    """One connection at the server, served by a thread of its own."""

    def __init__(self, listener: Listener, sock: socket.socket) -> None:
        self._listener, self.sock = listener, sock
        self.agent: int | None = None
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._serve, name="federation-agent", daemon=True)
        self._calls: dict[Any, Callable[[FederatedServer, dict[str, Any]], Any]] = {
            "join": self._join,
            "submit": self._submit,
            "collect": self._collect,
            "broadcasts": self._broadcasts,
            "leave": self._leave,
            "guarantee": self._guarantee,
        }

    def end(self) -> None:
        self.ended.set()
        _shut(self.sock)

    def _serve(self) -> None:
        try:
            with self.sock:
                _tune(self.sock)
                self._admit()
                while not self.ended.is_set():
                    self._answer()
        except Exception:
            pass  # gone, or talking nonsense: it is this connection's end alone, and no log's
        finally:
            self._listener.forget(self)

    def _admit(self) -> None:
        """Both sides prove that they know the agent's secret."""
        listener, nonce = self._listener, secrets.token_hex(16)
        self.sock.settimeout(_PATIENCE)
        _send(self.sock, {"protocol": _PROTOCOL, "nonce": nonce})
        hello = _receive(self.sock, _HANDSHAKE)
        agent, theirs = _count(hello.get("agent")), _text(hello.get("nonce"))
        secret = listener.secret_of(agent)
        known = _same(_proof(secret, "agent", agent, nonce, theirs), hello.get("proof"))
        if not known or agent >= listener.config.n_agents:
            _send(self.sock, {"refused": True})
            raise EOFError
        self.agent = agent
        listener.make_room(self)
        server = listener.server()
        settings = {
            "config": listener.config.to_dict(),
            "deadline": listener.deadline,
            "released": [] if server is None else server.digests(),
        }
        _send(self.sock, settings | {"proof": _proof(secret, "server", agent, theirs, nonce)})
        self.sock.settimeout(None)

    def _answer(self) -> None:
        request = _receive(self.sock, _request_limit(self._listener.config))
        if type(request.get("agent")) is not int or request["agent"] != self.agent:
            raise _MalformedError  # an agent speaks for itself only
        server = self._listener.server()
        if server is None:
            raise EOFError
        _send(self.sock, self._reply(server, request))

    def _reply(self, server: FederatedServer, request: dict[str, Any]) -> dict[str, Any]:
        call = request.get("call")
        if not isinstance(call, str) or call not in self._calls:
            raise _MalformedError
        try:
            return {"result": self._calls[call](server, request)}
        except (_MalformedError, EOFError):
            raise
        except Exception as error:
            return {"error": _told(error)}

    @property
    def _number(self) -> int:
        return _count(self.agent)

    def _join(self, server: FederatedServer, request: dict[str, Any]) -> None:
        server._agree(_space(request.get("space")))

    def _submit(self, server: FederatedServer, request: dict[str, Any]) -> int | None:
        key, vector = _text(request.get("key")), _unpacked(request.get("vector"))
        return self._listener.submit(server, self._number, key, vector)

    def _collect(self, server: FederatedServer, request: dict[str, Any]) -> Any:
        t, sender = _count(request.get("round")), self._number if request.get("sent") else None
        found = server._collect(t, sender=sender, ended=self.ended)
        if self.ended.is_set():
            raise EOFError
        return None if found is None else _broadcast_to_wire(found)

    def _broadcasts(self, server: FederatedServer, request: dict[str, Any]) -> Any:
        epoch = self._listener.epoch
        after = _count(request.get("after"))
        if request.get("epoch") != epoch:  # what this agent knows came from another server
            after = 0
        known = server.broadcasts()
        page = [_broadcast_to_wire(b) for b in known[after : after + _PAGE]]
        return {"epoch": epoch, "page": page, "more": after + len(page) < len(known)}

    def _leave(self, server: FederatedServer, _request: dict[str, Any]) -> None:
        server._leave(self._number)

    def _guarantee(self, server: FederatedServer, _request: dict[str, Any]) -> Any:
        return server.guarantee().to_dict()


def _told(error: Exception) -> tuple[str, str]:
    """Name and text of what may be told to an agent."""
    name = type(error).__name__
    if _TOLD.get(name) is type(error):
        return name, str(error)
    if isinstance(error, VaultError):
        return "FederationError", _VAULT_FAILED
    return "FederationError", (
        f"The federation's server failed inside ({public_name(error)}). Its operator has to look "
        "after it; until then agents can go on alone."
    )


class Listener:
    """Answers agents of other processes; made by :meth:`FederatedServer.listen`.

    It holds its server weakly, so that a server that nobody holds ends, and its listener with it.

    Args:
        server: Whom to answer for.
        address: Where to listen.
        secret: The master secret; see :meth:`FederatedServer.listen`.

    Raises:
        FederationError: If the address cannot be used.
        PrivacyError: If others can read the secret file.
        ValueError: If the secret is too short, or its file cannot be used.
    """

    def __init__(
        self,
        server: FederatedServer,
        address: Address,
        secret: bytes | str | os.PathLike[str] | None,
    ) -> None:
        self._master = _master(secret)
        self.config, self.deadline = server.config, server._deadline
        self._run_id = server._invitations
        self.epoch = secrets.token_hex(16)
        self.server: Callable[[], FederatedServer | None] = weakref.ref(server)
        self._lock = threading.RLock()
        self._connections: list[_Connection] = []
        self._submitting = threading.Lock()
        self._submitted: dict[int, tuple[str, int | None]] = {}
        self._closing = threading.Event()
        _warn_if_seen(address)
        self._socket = _bind(address)
        self._socket.setblocking(False)
        self.address: Address = address
        if not isinstance(address, str):
            self.address = self._socket.getsockname()[:2]
        self._bell, self._rope = socket.socketpair()
        self._bell.setblocking(False)
        self._rope.setblocking(False)
        self._thread = threading.Thread(target=self._listen, name="federation", daemon=True)
        self._thread.start()
        _LISTENERS.add(self)
        # A server that nobody holds is ended by whichever thread drops it, so nothing is joined.
        weakref.finalize(server, self._end).atexit = False

    def __repr__(self) -> str:
        return f"Listener({_place(self.address)!r})"

    def secret_of(self, agent: int) -> bytes:
        """The secret of one agent."""
        return _secret_of(self._master, self._run_id, agent)

    def invitation(self, agent: int, address: Address | None) -> str:
        """What the operator gives to one agent; see :meth:`FederatedServer.invitation`."""
        reached = self.address if address is None else address
        if not isinstance(reached, str) and reached[0] in ("0.0.0.0", "::"):
            raise ValueError(
                f"The server listens on every address of this machine ({_place(reached)}): say "
                "which one agents reach it by, invitation(agent, address=(host, port))."
            )
        return _Invitation(reached, agent, self.secret_of(agent)).text()

    def submit(self, server: FederatedServer, agent: int, key: str, vector: Array) -> int | None:
        """Submits once, however often an agent that lost its connection repeats itself.

        Without the key, the repetition of a message that completed its round would open the next.
        """
        with self._submitting:
            last = self._submitted.get(agent)
            if last is None or last[0] != key:
                last = self._submitted[agent] = key, server._submit(agent, vector)
        self._ring()  # a round may have been opened: somebody has to watch its deadline
        return last[1]

    def make_room(self, newcomer: _Connection) -> None:
        """Ends the oldest of an agent's connections if there are too many."""
        with self._lock:
            same = [c for c in self._connections if c.agent == newcomer.agent]
            ended = same[:-_CONNECTIONS]
        for connection in ended:
            connection.end()
        if ended:
            self._notify()

    def forget(self, connection: _Connection) -> None:
        """A connection's thread is about to end."""
        with self._lock:
            if connection in self._connections:
                self._connections.remove(connection)

    def _notify(self) -> None:
        """Wakes threads that wait for the end of a round."""
        server = self.server()
        if server is not None:
            with server._lock:
                server._lock.notify_all()

    # The listening thread -----------------------------------------------------------------------

    def _ring(self) -> None:
        try:
            self._rope.send(b"!")
        except OSError:
            pass  # full: it rings already; or closed

    def _listen(self) -> None:
        with self._socket, self._bell, self._rope:
            while not self._closing.is_set():
                if self._bell in wait([self._socket, self._bell], self._watch()):
                    self._bell.recv(4096)
                self._accept()
            self._end()  # of whoever was let in meanwhile
            if isinstance(self.address, str) and os.path.exists(self.address):
                os.unlink(self.address)

    def _watch(self) -> float | None:
        """Closes a round that is over its deadline; seconds to the next one, None for none."""
        server = self.server()
        if server is None:
            return None
        try:
            server.poll()
        except Exception:
            return 1.0  # the vault may come back; agents are answered meanwhile
        with server._lock:
            current = server._round
            left = None if current is None else server._time_left(current)
        return None if left is None else min(max(0.0, left), 3600.0)

    def _accept(self) -> None:
        try:
            sock = self._socket.accept()[0]
        except BlockingIOError:
            return
        except OSError:
            self._closing.wait(0.1)  # no descriptors left: others may end
            return
        sock.setblocking(True)
        connection = _Connection(self, sock)
        with self._lock:
            self._connections.append(connection)
        self.make_room(connection)
        try:
            connection.thread.start()
        except RuntimeError:  # no threads left
            sock.close()
            self.forget(connection)

    # The end ------------------------------------------------------------------------------------

    def _end(self) -> list[threading.Thread]:
        """Tells every thread to end, without waiting for it."""
        self._closing.set()
        self._ring()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.end()
        return [connection.thread for connection in connections]

    def close(self, timeout: float | None = None) -> None:
        """Stops listening, ends all connections and waits for their threads."""
        _LISTENERS.discard(self)
        self._closing.set()
        self._ring()
        self._thread.join(timeout)  # first: it may be about to accept one more
        threads = self._end()
        self._notify()
        for thread in threads:
            thread.join(timeout)

    def after_fork(self) -> None:
        """A child closes its copies: the port is to be free when its parent has ended."""
        for owned in (self._socket, self._bell, self._rope):
            owned.close()
        for connection in self._connections:
            connection.sock.close()
        self._lock, self._closing, self._connections = threading.RLock(), threading.Event(), []
        self._closing.set()


_LISTENERS: weakref.WeakSet[Listener] = weakref.WeakSet()


def _after_fork() -> None:
    for listener in list(_LISTENERS):
        listener.after_fork()
    _LISTENERS.clear()


def _at_exit() -> None:
    for listener in list(_LISTENERS):
        listener.close(timeout=5.0)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)


# The agent's side -------------------------------------------------------------------------------


class RemoteLink:
    """A link to a server in another process; made by :func:`connect`.

    Connections are opened as they are needed, one a thread that calls, so a link may be used from
    several threads and in a forked child. One that was lost is opened again by the next call; a
    vector that is sent again counts once. It cannot be pickled, because it knows a secret.
    """

    def __init__(self, invitation: str) -> None:
        self._invitation = _invitation_from(invitation)
        self._place = _place(self._invitation.address)
        self._pid = os.getpid()
        self._idle: list[socket.socket] = []
        self._settings: dict[str, Any] | None = None
        self._deadline: float | None = None
        self._space: dict[str, Any] | None = None
        self._sent: int | None = None
        self._reading = threading.Lock()
        self._epoch, self._known = "", list[Broadcast]()
        self._seen: dict[int, str] = {}
        weakref.finalize(self, _close_all, self._idle)
        self._idle.append(self._open())

    def __repr__(self) -> str:
        return f"RemoteLink(agent {self.agent} at {self._place!r})"

    def __reduce__(self) -> Any:
        raise PrivacyError(
            "A link to a federation's server cannot be pickled: it knows its agent's secret. Put "
            "the invitation into an environment variable of the other process, and call "
            "connect('env:NAME') there."
        )

    @property
    def agent(self) -> int:
        """The agent's number on the roster, from 0."""
        return self._invitation.agent

    @property
    def config(self) -> FederationConfig:
        """The federation's public settings."""
        return self._config

    def join(self, space: Mapping[str, Any]) -> None:
        """Agrees on the space (:meth:`Space.to_dict`) that all agents tune.

        Raises:
            SpaceChangedError: If the others tune another one.
            FederationError: If the server cannot be reached or does not go on.
            ValueError: If its description is too long.
        """
        size = len(json.dumps(dict(space)))
        if size > _ROOM // 2:
            raise ValueError(
                f"The description of the search space takes {size} bytes, more than {_ROOM // 2}: "
                "use fewer choices, or numbers that stand for them."
            )
        self._call("join", space=dict(space))
        self._space = dict(space)

    def submit(self, message: Array) -> int | None:
        """Sends a vector to the open round and returns its number; None once there is none.

        Raises:
            FederationError: If the server cannot be reached or does not go on.
            ValueError: If the vector has another length than ``config.message_length``.
        """
        vector, length = np.asarray(message, dtype=float), self.config.message_length
        if vector.shape != (length,):
            raise ValueError(f"A message has shape ({length},), got {vector.shape}.")
        key, packed = secrets.token_hex(16), _packed(vector)
        self._sent = self._call("submit", key=key, vector=packed, read=_optional(_count))
        return self._sent

    def collect(self, t: int) -> Broadcast | None:
        """Waits for the end of a round.

        Returns:
            None if the server knows no such round any longer, or was started again since this
            agent's vector was sent there.

        Raises:
            FederationError: If the server cannot be reached or does not go on.
        """
        deadline = self._deadline
        patience = None if deadline is None or deadline > 1e6 else deadline + _BUSY
        found: Broadcast | None = self._call(
            "collect", patience, round=int(t), sent=t == self._sent, read=_optional(self._received)
        )
        return found

    def _received(self, found: Mapping[str, Any]) -> Broadcast:
        """Remembers what a round released: another content later means a lost ledger."""
        broadcast = _broadcast_from_wire(found, self.config)
        if not 1 <= broadcast.round <= self.config.n_rounds:
            raise _MalformedError
        self._seen[broadcast.round] = broadcast.digest()
        return broadcast

    def broadcasts(self) -> list[Broadcast]:
        """Everything released so far; what is known already is not sent again.

        Raises:
            FederationError: If the server cannot be reached or does not go on.
        """
        self._check_process()
        with self._reading:
            for _ in range(self.config.n_rounds + 2):  # pages are not empty; a server may change
                known = len(self._known)
                if not self._call("broadcasts", epoch=self._epoch, after=known, read=self._turn):
                    return list(self._known)
        raise self._another_version()

    def _turn(self, found: Mapping[str, Any]) -> bool:
        """Takes a page; whether there are more."""
        epoch, page = _text(found["epoch"]), [self._received(b) for b in found["page"]]
        if epoch != self._epoch:  # another server answers than before
            self._epoch, self._known = epoch, []
        if len(self._known) + len(page) > self.config.n_rounds:
            raise _MalformedError
        self._known += page
        return bool(found["more"])

    def leave(self) -> None:
        """Says that this agent sends nothing more, so that rounds need not wait for it.

        Raises:
            FederationError: If the server cannot be reached.
        """
        self._call("leave")

    def guarantee(self) -> FederationGuarantee:
        """What may be claimed for the broadcasts.

        Raises:
            FederationError: If the server cannot be reached or does not go on.
        """
        found: FederationGuarantee = self._call("guarantee", read=_guarantee_from_wire)
        return found

    def close(self) -> None:
        """Closes the connections; the next call opens one again."""
        _close_all(self._idle)

    # Connections --------------------------------------------------------------------------------

    def _check_process(self) -> None:
        if self._pid != os.getpid():  # a forked child: what is open belongs to its parent
            _close_all(self._idle)
            self._reading, self._pid = threading.Lock(), os.getpid()

    def _call(
        self,
        call: str,
        patience: float | None = _BUSY,
        read: Callable[[Any], Any] = lambda _: None,
        **more: Any,
    ) -> Any:
        self._check_process()
        request = {"call": call, "agent": self.agent, **more}
        reply = self._ask(self._take(), request, patience)
        if reply is None:
            reply = self._ask(self._open(), request, patience)
        if reply is None:
            raise FederationError(
                f"The federation's server at {self._place} closed the connection without an "
                "answer. Check that it runs this version; the agent can go on alone meanwhile."
            )
        try:
            return _understood(read, _result(reply))
        except _MalformedError:
            pass
        raise self._another_version()

    def _another_version(self) -> FederationError:
        return FederationError(
            f"The federation's server at {self._place} gave an answer that this version does not "
            "know. Check that it runs the same version; the agent can go on alone meanwhile."
        )

    def _take(self) -> socket.socket | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _ask(
        self, sock: socket.socket | None, request: dict[str, Any], patience: float | None
    ) -> dict[str, Any] | None:
        """The reply; None if there is no connection any longer."""
        if sock is None:
            return None
        silent = False
        try:
            sock.settimeout(patience)
            _send(sock, request)
            reply = _receive(sock, _reply_limit(self.config))
        except TimeoutError:
            silent = True
        except (OSError, EOFError, _MalformedError):
            sock.close()
            _close_all(self._idle)  # the server has ended: so have the others
            return None
        except BaseException:
            sock.close()  # an answer may still come, and must not be taken for another's
            raise
        if silent:
            sock.close()
            raise FederationError(
                f"The federation's server at {self._place} does not answer. The agent can go on "
                "alone, and tries again at its next round."
            )
        self._idle.append(sock)
        return reply

    def _open(self) -> socket.socket:
        why, sock = "", None
        try:
            sock = _dial(self._invitation.address)
            _tune(sock)
            self._introduce(sock)
            return sock
        except (OSError, EOFError, _MalformedError) as error:
            why = _reason(error)
            if sock is not None:
                sock.close()
        except BaseException:
            if sock is not None:
                sock.close()
            raise
        raise FederationError(
            f"The federation's server at {self._place} cannot be reached ({why}). Check that it "
            "runs and listens there; the agent can go on alone, and tries again at its next round."
        )

    def _introduce(self, sock: socket.socket) -> None:
        """Proves who this agent is, and demands the same of the server, before anything else."""
        agent, secret, nonce = self.agent, self._invitation.secret, secrets.token_hex(16)
        seen = dict(self._seen)  # another thread may see a later release while this answer comes
        hello = _receive(sock, _HANDSHAKE)
        theirs = _text(hello.get("nonce"))
        if hello.get("protocol") != _PROTOCOL:
            raise _MalformedError
        proof = _proof(secret, "agent", agent, theirs, nonce)
        _send(sock, {"agent": agent, "nonce": nonce, "proof": proof})
        answer = _receive(sock, _ROOM)
        if not _same(_proof(secret, "server", agent, nonce, theirs), answer.get("proof")):
            raise FederationError(
                f"What listens at {self._place} does not accept this invitation of agent "
                f"{agent}, or is not the server that gave it. Nothing was sent. Ask the server's "
                "operator for a new invitation."
            )
        config, deadline, released = _understood(_greeting_from_wire, answer)
        if self._settings is not None and answer["config"] != self._settings:
            raise FederationError(
                f"The federation's server at {self._place} was started again with other settings. "
                "Start this agent again too."
            )
        if any(t > len(released) or released[t - 1] != digest for t, digest in seen.items()):
            raise FederationError(
                f"The federation's server at {self._place} has lost its ledger: its record of "
                "what it released before is missing or differs, so it would spend its budget "
                "again. Nothing was sent. Its operator has to put its database back."
            )
        self._settings, self._config, self._deadline = answer["config"], config, deadline
        if self._space is not None:  # the server may have been started again, and know nothing
            sock.settimeout(_BUSY)
            _send(sock, {"call": "join", "agent": agent, "space": self._space})
            _result(_receive(sock, _ROOM))


def _result(reply: Mapping[str, Any]) -> Any:
    if "error" in reply:
        told = _understood(_texts, reply["error"])
        if len(told) != 2:
            raise _MalformedError
        raise _TOLD.get(told[0], FederationError)(told[1])
    return reply.get("result")


def _optional(read: Callable[[Any], T]) -> Callable[[Any], T | None]:
    return lambda sent: None if sent is None else read(sent)


def _close_all(sockets: list[socket.socket]) -> None:
    while sockets:
        sockets.pop().close()


def connect(invitation: str) -> RemoteLink:
    """A link to a federation's server in another process.

    Args:
        invitation: The text that :meth:`FederatedServer.invitation` gave for this agent, or
            ``env:NAME`` for the text that an environment variable holds. It is a secret: whoever
            has it can send in the agent's name, or pose as the server towards that agent alone.

    Raises:
        FederationError: If the server cannot be reached or does not accept the invitation.
        ValueError: If the text is no invitation, or the variable is not set.

    Example:
        >>> from privbo_plugins.federation import FederatedServer
        >>> from privbo_plugins.spaces import Float
        >>> server = FederatedServer(FederationConfig(n_agents=1, epsilon=2.0, n_rounds=1))
        >>> address = server.listen()
        >>> link = connect(server.invitation(0))  # in the agent's process
        >>> link.join(Space({"x": Float(0, 1)}).to_dict())
        >>> t = link.submit(np.zeros(link.config.message_length))
        >>> link.collect(t).round
        1
        >>> link.close()
        >>> server.close()
    """
    return RemoteLink(invitation)
