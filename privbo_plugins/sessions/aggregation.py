"""A server's side of a round in which it sees the agents' noisy sum alone.

The phases are those of :mod:`privbo_plugins.federation.phases`; symbols are those of
:mod:`privbo_plugins.federation.masking`. The server's operator may read all that it holds here:
masked vectors, sealed shares, and in the end what opens the sum, and nothing else.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.dp_fts_de.config import FederationConfig
from privbo_plugins.algorithms.dp_fts_de.server import Broadcast, Measure
from privbo_plugins.algorithms.dp_fts_de.shares import noise_in_sum
from privbo_plugins.federation import masking, phases
from privbo_plugins.federation.masking import Public, Words
from privbo_plugins.federation.messages import MalformedError, binary, text, understood
from privbo_plugins.federation.phases import KEYS, MASKED, OPEN, SHARES, Sent
from privbo_plugins.sealing import Meeting
from privbo_plugins.sessions.broadcasts import BroadcastLedger

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
        self.why_given_up = ""
        self._public: dict[int, Public] = {}
        self._sealed: dict[int, dict[int, str]] = {}
        self._y: dict[int, Words] = {}
        self._seeds: dict[int, dict[int, bytes]] = {}
        self._lost: dict[int, dict[int, bytes]] = {}

    def __repr__(self) -> str:
        return f"Attempt(round {self.t}, phase {self.phase})"

    @property
    def sent(self) -> set[int]:
        """U_1, the agents that take part."""
        return set(self._public)

    # What agents send ---------------------------------------------------------------------------

    def enter(self, u: int, asked: Sent) -> bool:
        """Takes an agent's keys; tells if it takes part with them.

        Raises:
            MalformedError: If they are none, or no agent could agree on a secret with them, such
                as zeros (RFC 7748, 6.1).
        """
        public = understood(_usable_keys, asked)
        if self.phase == KEYS:
            self._public.setdefault(u, public)
        return self._public.get(u) == public

    def post(self, u: int, sent: Mapping[str, Any]) -> None:
        """Takes what an agent sends in this phase; the first message counts.

        Raises:
            MalformedError: If it is none of this phase.
        """
        if u in self._members(self.phase - 1):
            understood(lambda sent: self._take(u, sent), sent)

    def _take(self, u: int, sent: Mapping[str, Any]) -> None:
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
        """Makes the reply at the end of a phase; None if it is not among those who sent."""
        if u not in self._members(phase):
            return None
        if phase == KEYS:
            return {"keys": {str(v): phases.written(keys) for v, keys in self._public.items()}}
        if phase == SHARES:
            return {"shares": {str(v): own[u] for v, own in self._sealed.items() if v != u}}
        return {"present": sorted(self._y)}

    # How far it is ------------------------------------------------------------------------------

    def _members(self, phase: int) -> set[int]:
        """U_1, U_2, U_3, and the agents that helped to open the sum."""
        return set((self._public, self._sealed, self._y, self._seeds)[phase])

    def complete(self, left: set[int]) -> bool:
        """Tells if no agent is waited for; agents in ``left`` send no more."""
        if self.phase == OPEN:
            return self.recoverable or self._members(OPEN) >= set(self._y)
        everybody = set(range(self.config.n_agents)) if self.phase == KEYS else set()
        return self._members(self.phase) | left >= (everybody or self._members(self.phase - 1))

    def end_phase(self, ledger: BroadcastLedger, now: float) -> bool:
        """Goes on to the next phase, releases the round or gives it up; tells if it is over.

        The ledger is charged before any agent helps to open the sum.

        Raises:
            FederationError: If the vault refuses; the phase goes on.
        """
        if self.phase == OPEN:
            self._open_sum(ledger)
            return True
        if len(self._members(self.phase)) < self.config.present:
            self._give_up(ledger, self._too_few(self.config.present))
            return True
        if self.phase == MASKED:
            self.token = ledger.admit(self.measure)
            if not self.token:  # another server of this run has released the round meanwhile
                return True
        self.phase, self.opened = self.phase + 1, now
        return False

    def _open_sum(self, ledger: BroadcastLedger) -> None:
        if not self.recoverable:
            return self._give_up(ledger, self._too_few(self.config.threshold))
        try:
            broadcast = self.broadcast()
        except SpoiledError:
            return self._give_up(ledger, SPOILED.format(t=self.t))
        return ledger.accept(self.measure, self.token, broadcast)

    def _give_up(self, ledger: BroadcastLedger, why: str) -> None:
        self.why_given_up = why
        ledger.lost += bool(self.token)

    def _too_few(self, least: int) -> str:
        n = len(self._members(self.phase))
        return TOO_FEW.format(t=self.t, n=n, least=least, did=_DID[self.phase])

    @property
    def recoverable(self) -> bool:
        """True if t shares of everything are there that hides the sum."""
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
                met = Meeting(s_v, self._public[u].s)
                total -= masking.pair_mask(met, u, v, purpose, d)
        return total.view(np.int64)

    def _secret(self, v: int, held: Mapping[int, Mapping[int, bytes]]) -> bytes:
        """Joins what agent v has shared: the seed of its mask, or its key."""
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


def _usable_keys(asked: Sent) -> Public:
    """Reads an agent's keys, with which others can agree on a secret."""
    public = phases.read(asked["keys"])
    for key in (public.c, public.s):
        Meeting(bytes(masking.SEED), key)
    return public


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
