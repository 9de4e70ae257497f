"""A server's side of a round in which it sees the agents' noisy sum alone.

The phases are those of :mod:`privbo_plugins.federation.phases`; symbols are those of
:mod:`privbo_plugins.federation.masking`. What the server holds here may be read by whoever runs
it: masked vectors, sealed shares, and in the end what opens the sum, and nothing else.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.dp_fts_de.config import FederationConfig
from privbo_plugins.algorithms.dp_fts_de.server import Broadcast, Measure
from privbo_plugins.algorithms.dp_fts_de.shares import noise_in_sum
from privbo_plugins.errors import FederationError, PrivacyError
from privbo_plugins.federation import masking, phases
from privbo_plugins.federation.masking import Public, Words
from privbo_plugins.federation.messages import MalformedError, binary, text, understood
from privbo_plugins.federation.phases import KEYS, MASKED, OPEN, SHARES, Sent
from privbo_plugins.privacy.source import NoiseSource
from privbo_plugins.sessions.broadcasts import BROADCAST, to_payload
from privbo_plugins.store.release import PAYLOADS, Order, accept, admit
from privbo_plugins.store.vault import Transaction

if TYPE_CHECKING:
    from privbo_plugins.sessions.rounds import FederatedServer

R = TypeVar("R")

TOO_FEW = (
    "Round {t} was not released: {n} agents of at least {least} {did} in time. Nothing of their "
    "vectors can be read. Agents can go on alone, and try again at their next round."
)

SPOILED = (
    "Round {t} was not released: an agent has sent shares that do not open the sum. The round is "
    "paid for. Agents can go on alone, and try again at their next round."
)

_DID = ("were there", "have shared their secrets", "have sent their vectors", "helped to open it")


class SpoiledError(Exception):
    """What agents have sent opens no sum."""


class Attempt:
    """One attempt at a round: what agents have sent in each phase.

    Args:
        config: The federation's public settings.
        t: Number of the round, from 1.
        S: Clipping norm.
        now: The server's clock.
    """

    def __init__(self, config: FederationConfig, t: int, S: float, now: float) -> None:
        self.config, self.measure, self.t = config, Measure(config, t, S), t
        self.name = secrets.token_hex(16)
        self.opened = now
        """When this phase began."""
        self.phase = KEYS
        self.token = ""
        """Of the charge, once it was charged."""
        self._public: dict[int, Public] = {}
        self._sealed: dict[int, dict[int, str]] = {}
        self._y: dict[int, Words] = {}
        self._seeds: dict[int, dict[int, bytes]] = {}
        self._lost: dict[int, dict[int, bytes]] = {}

    def __repr__(self) -> str:
        return f"Attempt(round {self.t}, phase {self.phase})"

    @property
    def sent(self) -> set[int]:
        """U_1: who takes part."""
        return set(self._public)

    # What agents send ---------------------------------------------------------------------------

    def enter(self, u: int, sent: Sent) -> bool:
        """Takes an agent's keys; whether it takes part with them.

        Raises:
            MalformedError: If they are none.
            ValueError: If nobody could agree on a secret with them, such as zeros (RFC 7748, 6.1).
        """
        public = phases.read(sent)
        for key in (public.c, public.s):
            masking.Meeting(bytes(masking.SEED), key)
        if self.phase == KEYS:
            self._public.setdefault(u, public)
        return self._public.get(u) == public

    def post(self, u: int, sent: Mapping[str, Any]) -> None:
        """Takes what an agent sends in this phase; the first message counts.

        Raises:
            MalformedError: If it is none of this phase.
        """
        if u not in self._members(self.phase - 1):
            return
        if self.phase == SHARES:
            self._sealed.setdefault(u, self._read_shares(u, sent))
        elif self.phase == MASKED:
            self._y.setdefault(u, phases.words(sent["vector"], self.measure.d))
        elif self.phase == OPEN and u not in self._seeds:
            seeds = _shares(sent["seeds"], set(self._y))
            self._lost[u] = _shares(sent["keys"], set(self._sealed) - set(self._y))
            self._seeds[u] = seeds

    def _read_shares(self, u: int, sent: Mapping[str, Any]) -> dict[int, str]:
        sealed = {int(v): text(binary(s, _SEALED)) for v, s in sent["shares"].items()}
        if set(sealed) != set(self._public) - {u}:
            raise MalformedError
        return sealed

    def told(self, u: int, phase: int) -> Sent | None:
        """What an agent hears at the end of a phase; None if it is not among those who sent."""
        if u not in self._members(phase):
            return None
        if phase == KEYS:
            return {"keys": {str(v): phases.written(keys) for v, keys in self._public.items()}}
        if phase == SHARES:
            return {"shares": {str(v): own[u] for v, own in self._sealed.items() if v != u}}
        return {"present": sorted(self._y)}

    # How far it is ------------------------------------------------------------------------------

    def _members(self, phase: int) -> set[int]:
        """U_1, U_2, U_3, and who helped to open the sum."""
        return set((self._public, self._sealed, self._y, self._seeds)[phase])

    def complete(self, left: set[int]) -> bool:
        """Whether nobody is waited for; ``left`` are those who said that they send no more."""
        if self.phase == OPEN:
            return self.recoverable or self._members(OPEN) >= set(self._y)
        everybody = set(range(self.config.n_agents)) if self.phase == KEYS else set()
        return self._members(self.phase) | left >= (everybody or self._members(self.phase - 1))

    @property
    def enough(self) -> bool:
        """Whether the next phase may begin."""
        return len(self._members(self.phase)) >= self.config.present

    @property
    def why_not(self) -> str:
        """What is told of an attempt that is given up."""
        least = self.config.threshold if self.phase == OPEN else self.config.present
        n = len(self._members(self.phase))
        return TOO_FEW.format(t=self.t, n=n, least=least, did=_DID[self.phase])

    @property
    def recoverable(self) -> bool:
        """Whether t shares of everything are there that hides the sum."""
        t = self.config.threshold
        if len(self._seeds) < t:
            return False
        seeds = all(sum(v in held for held in self._seeds.values()) >= t for v in self._y)
        lost = set(self._sealed) - set(self._y)
        return seeds and all(sum(v in held for held in self._lost.values()) >= t for v in lost)

    # The sum ------------------------------------------------------------------------------------

    def total(self) -> NDArray[np.int64]:
        """Sum of x_u over U_3, in units of S / 2^36, shape (d,).

        Raises:
            SpoiledError: If shares do not give what agents have committed themselves to.
        """
        d, purpose = self.measure.d, f"privbo-masks/1 {self.name} {self.t}"
        total = np.zeros(d, dtype=np.uint64)
        for u, y in self._y.items():
            total += y - masking.stream(self._secret(u, self._seeds), d)
        for v in set(self._sealed) - set(self._y):
            s_v = self._secret(v, self._lost)
            for u in self._y:
                met = masking.Meeting(s_v, self._public[u].s)
                total -= masking.pair_mask(met, u, v, purpose, d)
        return total.view(np.int64)

    def _secret(self, v: int, held: Mapping[int, Mapping[int, bytes]]) -> bytes:
        """What agent v has shared: the seed of its mask, or its key."""
        shares = {u: held[u][v] for u in sorted(held) if v in held[u]}
        few = dict(list(shares.items())[: self.config.threshold])
        try:
            secret = masking.joined(few)
        except ValueError:
            secret = b""
        known = self._public[v]
        fits = known.b == hashlib.sha256(secret).digest()
        if held is self._lost:
            fits = len(secret) == masking.SEED and masking.public_of(secret) == known.s
        if not fits:
            raise SpoiledError
        return secret

    def broadcast(self) -> Broadcast:
        """The release; post-processing of the noisy sum.

        Raises:
            SpoiledError: As :meth:`total`.
        """
        scale = noise_in_sum(self.config, self.measure.S, len(self._y))
        return self.measure.broadcast(self.measure.of_units(self.total()), scale)


_SEALED = 2 * masking.SHARE + 16
"""Bytes of two shares and a tag."""


def _shares(sent: Mapping[str, Any], of: set[int]) -> dict[int, bytes]:
    """Shares by whose secret they are of.

    Raises:
        MalformedError: If they are none, or of somebody else.
    """
    found = {int(v): binary(share, masking.SHARE) for v, share in sent.items()}
    if not set(found) <= of:
        raise MalformedError
    return found


# A server's rounds ------------------------------------------------------------------------------


def enter(server: FederatedServer, agent: int, asked: Sent) -> Sent | None:
    """An agent joins the open attempt with its keys; None once all rounds are used up.

    Raises:
        MalformedError: If the keys are none.
        PrivacyError: If the server sees vectors: nobody masks them there.
    """
    with server._lock:
        current = server._joined(agent)
        if current is None:
            return None
        if not isinstance(current, Attempt):
            raise PrivacyError("This federation's server takes vectors, not keys for masks.")
        part = _read(lambda: current.enter(agent, asked["keys"]))
        server._close_if_complete()
        name = current.name if part else None
        return {"round": current.t, "attempt": name, "norm": float(current.measure.S)}


def turn(
    server: FederatedServer,
    agent: int,
    asked: Sent,
    ended: threading.Event | None = None,
    patience: float = math.inf,
) -> Sent:
    """What an agent sends in a phase, and how that phase ended.

    Args:
        server: Whose round it is.
        agent: The agent's number.
        asked: Names the attempt and the phase, and holds what is sent, unless it was.
        ended: Ends the wait, once whoever set it has notified the server's lock.
        patience: Seconds after which it ends too.

    Raises:
        FederationError: If the attempt was given up, with the reason.
        MalformedError: If the message is none of this phase.
    """
    until = server._now() + patience
    name, phase, sent = _read(lambda: _asked(asked))
    with server._lock:
        current = _named(server, name)
        if current is not None and sent is not None and phase == current.phase:
            post = partial(current.post, agent, sent)
            _read(post)
            server._close_if_complete()
        while (current := _named(server, name)) is not None:
            if current.phase > phase:
                return current.told(agent, phase) or {"over": True}
            if ended is not None and ended.is_set():
                break
            if server._overdue(current) or server._complete(current):
                server._close(current)  # complete and open: the vault refused it before
            elif (left := until - server._now()) <= 0:
                return {"waiting": True}
            else:
                server._wait(left, current)
        return {"over": True}


def _asked(asked: Mapping[str, Any]) -> tuple[str, int, Mapping[str, Any] | None]:
    return asked["attempt"], int(asked["phase"]), asked["sent"]


def _read(act: Callable[[], R]) -> R:
    """What an agent has sent, read with suspicion.

    Raises:
        MalformedError: If it cannot be read; its frames hold nothing of what was sent.
    """
    return understood(lambda _: act(), None)


def _named(server: FederatedServer, name: str) -> Attempt | None:
    """The open attempt, if it is the one that an agent takes part in.

    Raises:
        FederationError: If that one was given up.
    """
    if server._given_up is not None and server._given_up[0] == name:
        raise FederationError(server._given_up[1])
    current = server._round
    return current if isinstance(current, Attempt) and current.name == name else None


def end_phase(server: FederatedServer, current: Attempt) -> None:
    """The next phase, the release, or the end of the attempt."""
    if current.phase == OPEN:
        _open_sum(server, current)
    elif not current.enough:
        _give_up(server, current, current.why_not)
    elif current.phase != MASKED or _admit(server, current):
        current.phase += 1
        current.opened = server._now()


def _admit(server: FederatedServer, current: Attempt) -> bool:
    """Charges before anybody helps to open the sum; whether it may be opened.

    Not if another server of this run has released the round meanwhile: its broadcast counts.
    """

    def admitted() -> tuple[Mapping[str, Any] | None, str]:
        with server.run.transaction() as tx:
            earlier = sum(charge.key.split("/")[0] == str(current.t) for charge in tx.charges())
            key = f"{current.t}/{earlier + 1}" if earlier else str(current.t)
            order = _order(current, lambda tx: server._charge(tx, current.measure, key))
            return admit(server.run, tx, order)

    known, current.token = server._tried(current.t, admitted)
    if known is not None:
        server._publish(current.t, lambda: known)
    return known is None


def _open_sum(server: FederatedServer, current: Attempt) -> None:
    why = "" if current.recoverable else current.why_not
    payload: dict[str, Any] = {}
    if not why:
        try:
            payload = to_payload(current.broadcast())
        except SpoiledError:
            why = SPOILED.format(t=current.t)
    if why:
        _give_up(server, current, why)
    else:
        server._publish(current.t, lambda: _accepted(server, current, payload))


def _accepted(
    server: FederatedServer, current: Attempt, payload: dict[str, Any]
) -> Mapping[str, Any]:
    with server.run.transaction() as tx:
        return accept(server.run, tx, _order(current, _paid), current.token, payload)


def _order(current: Attempt, charge: Callable[[Transaction], None]) -> Order[Mapping[str, Any]]:
    return Order(BROADCAST, str(current.t), charge, _drawn_by_agents, PAYLOADS)


def _paid(_tx: Transaction) -> None:
    """The charge was written before."""


def _drawn_by_agents(_noise: NoiseSource) -> Mapping[str, Any]:
    raise PrivacyError("Agents draw their shares of the noise themselves; a server draws none.")


def _give_up(server: FederatedServer, current: Attempt, why: str) -> None:
    server._given_up = current.name, why, current.t
    server._lost += bool(current.token)
    server._round = None
