"""An agent's side of a round in which its server sees the noisy sum alone.

A round is an *attempt* in four phases (Bonawitz et al. 2017, Figure 4). In each, an agent sends
something, and hears how the phase ended once all have sent, or the server's deadline is over:

    ========  ============================================  ==================================
    phase     an agent sends                                and hears
    ========  ============================================  ==================================
    KEYS      its public keys                               those of U_1
    SHARES    shares of its secrets, sealed for each other  those that U_2 have sealed for it
    MASKED    its masked vector with its share of noise     who is in U_3
    OPEN      its shares of what hides the sum over U_3     that the attempt is over
    ========  ============================================  ==================================

What the agent checks itself: at least T agents in every set, since the noise of fewer would not be
enough; that it opens one sum an attempt; and that it opens no more of them than the federation has
rounds. Keys and noise are new in every attempt. Messages are JSON-ready.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Generator, Mapping
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from privbo_plugins import sealing
from privbo_plugins.algorithms.dp_fts_de.config import FederationConfig
from privbo_plugins.algorithms.dp_fts_de.server import Measure
from privbo_plugins.algorithms.dp_fts_de.shares import share_scale
from privbo_plugins.errors import FederationError
from privbo_plugins.federation import masking
from privbo_plugins.federation.masking import Keys, Public, Words
from privbo_plugins.federation.messages import MalformedError, binary, text, understood
from privbo_plugins.privacy.source import ShareSource
from privbo_plugins.store.release import draw_share

Array = NDArray[np.float64]

KEYS, SHARES, MASKED, OPEN = range(4)
"""Phases of an attempt."""

UNFIT = (
    "The federation's server has sent what belongs to no round that this agent may help to open: "
    "too few agents, other keys than theirs, or more rounds than were agreed. Nothing more was "
    "sent; the agent can go on alone."
)

Sent = dict[str, Any]
"""A message, JSON-ready."""


class Exchange(Protocol):
    """An agent's way to a server that runs such rounds."""

    def enter(self, keys: Sent) -> Mapping[str, Any] | None:
        """Joins the open attempt; None once all rounds are used up."""
        ...

    def turn(self, asked: Sent) -> Mapping[str, Any]:
        """Sends what a phase asks for, and hears how it ended, or that it has not."""
        ...


class Masking:
    """One agent's part in all rounds of its federation.

    It is used by an agent's link, from several threads: one attempt at a time.

    Args:
        exchange: The way to the server.
        config: The federation's public settings.
        agent: The agent's number.
        noise: Test injection only, which the server's ledger knows of.
    """

    def __init__(
        self,
        exchange: Exchange,
        config: FederationConfig,
        agent: int,
        noise: ShareSource | None = None,
    ) -> None:
        self._exchange, self._config, self._agent = exchange, config, agent
        self._noise = noise
        self._d, self._scale = config.n_regions * config.message_length, share_scale(config)
        self._lock = threading.Lock()
        self._attempt: _Attempt | None = None
        self._n_opened = 0

    def submit(self, w: Array) -> int | None:
        """Joins the open round with a vector; its number, or None once there is none.

        Raises:
            FederationError: If the server cannot be reached or does not go on.
            ValueError: If the vector has another length than ``config.message_length``.
        """
        with self._lock:
            self._look()
            if self._attempt is not None:  # of another thread: its vector counts
                return self._attempt.t
            # Drawing takes as long as what is drawn makes it, and the server sees when messages
            # come: so it is done before the first.
            keys, noise = Keys.new(), draw_share(self._d, self._scale, self._noise)
            told = self._exchange.enter({"keys": written(keys.public)})
            if told is None:
                return None
            self._check_entry(told)
            if told["attempt"] is not None:
                measure = Measure(self._config, told["round"], told["norm"])
                x = measure.part(self._agent, w) + noise
                self._attempt = _Attempt(self._config, self._agent, told, keys, x)
            return int(told["round"])

    def _look(self) -> None:
        """Forgets an attempt that is over."""
        with suppress(FederationError):
            while self._attempt is not None and self._step(wait=False):
                pass
            return
        self._attempt = None

    def _check_entry(self, told: Mapping[str, Any]) -> None:
        t, S, name = (told.get(key) for key in ("round", "norm", "attempt"))
        fits = type(t) is int and 1 <= t <= self._config.n_rounds and isinstance(S, float)
        if not (fits and 1e-9 <= S <= 1e9 and isinstance(name, str | None)):  # type: ignore[operator]
            raise FederationError(UNFIT)

    def run(self, t: int) -> None:
        """Does what this agent has to do in round t, until the attempt is over.

        Raises:
            FederationError: If the server cannot be reached, or the round was not released.
        """
        while self._attempt is not None and self._attempt.t == t:
            with self._lock:
                self._step(wait=True)

    def step(self) -> bool:
        """Does what can be done without waiting; whether something was."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            return self._step(wait=False)
        except FederationError:
            return False  # this agent hears it when it asks itself
        finally:
            self._lock.release()

    def _step(self, *, wait: bool) -> bool:
        attempt = self._attempt
        if attempt is None:
            return False
        asked = {"attempt": attempt.name, "phase": attempt.phase, "sent": attempt.to_send}
        try:
            told = self._exchange.turn(asked | {"wait": wait})
        except FederationError:
            if wait:
                self._attempt = None
            raise
        attempt.to_send = None
        if told.get("waiting"):
            return False
        if "over" in told:
            self._attempt = None
        else:
            self._answer(attempt, told)
        return True

    def _answer(self, attempt: _Attempt, told: Mapping[str, Any]) -> None:
        """Prepares the message of the next phase."""
        opens = attempt.phase == MASKED
        try:
            if opens and self._n_opened >= self._config.n_rounds:
                raise MalformedError
            understood(attempt.hear, told)
        except MalformedError:
            self._attempt = None
        if self._attempt is None:  # outside of the handler: what was sent is in its frames
            raise FederationError(UNFIT)
        self._n_opened += opens


class _Attempt:
    """What an agent says in one attempt, and knows of it."""

    def __init__(
        self,
        config: FederationConfig,
        agent: int,
        told: Mapping[str, Any],
        keys: Keys,
        x: NDArray[np.int64],
    ) -> None:
        self.agent, self.name, self.t = agent, str(told["attempt"]), int(told["round"])
        self.phase = KEYS
        self.to_send: Sent | None = None
        self._config, self._keys, self._x = config, keys, x
        self._purpose = f"privbo-masks/1 {self.name} {self.t}"
        self._public: dict[int, Public] = {}
        self._own: tuple[bytes, bytes] | None = None
        self._sealed: dict[int, bytes] = {}
        self._met: dict[int, sealing.Meeting] = {}
        self._messages = self._say()
        next(self._messages)

    def __repr__(self) -> str:
        return f"_Attempt(round {self.t}, phase {self.phase})"

    def hear(self, told: Mapping[str, Any]) -> None:
        """Learns how a phase ended, and prepares the message of the next one."""
        self.to_send = self._messages.send(told)
        self.phase += 1

    def _say(self) -> Generator[Sent, Mapping[str, Any], None]:
        """All that the agent says after its keys, each for what it has heard before.

        Raises:
            MalformedError: If it may not help to open what it hears of.
        """
        u, t = self.agent, self._config.threshold
        told = yield {}
        self._public = {int(v): read(sent) for v, sent in told["keys"].items()}
        self._check(self._public, range(self._config.n_agents))
        if self._public[u] != self._keys.public:
            raise MalformedError
        keys = masking.split(self._keys.s, t, self._public)
        seeds = masking.split(self._keys.b, t, self._public)
        self._own = keys.pop(u), seeds.pop(u)
        told = yield {"shares": {
            str(v): text(sealing.sealed(self._key_to(u, v), keys[v] + seeds[v], self._purpose))
            for v in keys
        }}  # fmt: skip
        self._sealed = {int(v): binary(sent) for v, sent in told["shares"].items()}
        U_2 = {*self._sealed, u}
        self._check(U_2, self._public)
        others = {v: self._public[v] for v in self._sealed}
        y = masking.masked(self._x.view(np.uint64), u, self._keys, others, self._purpose)
        told = yield {"vector": text(y.astype("<u8").tobytes())}
        U_3 = {int(v) for v in told["present"]}
        self._check(U_3, U_2)
        held = {v: share for v in U_2 if (share := self._held(v)) is not None}
        yield {
            "seeds": {str(v): text(seed) for v, (_, seed) in held.items() if v in U_3},
            "keys": {str(v): text(key) for v, (key, _) in held.items() if v not in U_3},
        }
        raise MalformedError  # of another sum its shares would open masks of this one

    def _check(self, agents: Collection[int], among: Collection[int]) -> None:
        """Checks that a set of agents is one of which this agent may help to open a sum."""
        few = len(agents) < self._config.present
        if self.agent not in agents or few or not set(agents) <= set(among):
            raise MalformedError

    def _key_to(self, u: int, v: int) -> bytes:
        """For what u tells v, one of whom is this agent."""
        other = v if u == self.agent else u
        if other not in self._met:
            self._met[other] = sealing.Meeting(self._keys.known_c, self._public[other].c)
        return self._met[other].key(f"{self._purpose} from {u} to {v}")

    def _held(self, v: int) -> tuple[bytes, bytes] | None:
        """This agent's shares of v's key and seed; None if v has not sealed any."""
        if v == self.agent:
            return self._own
        try:
            both = sealing.opened(self._key_to(v, self.agent), self._sealed[v], self._purpose)
        except ValueError:
            return None
        return both[: masking.SHARE], both[masking.SHARE :]


# Messages ---------------------------------------------------------------------------------------


def words(sent: Any, d: int) -> Words:
    """A masked vector.

    Raises:
        MalformedError: If it is none of length d.
    """
    return np.frombuffer(binary(sent, 8 * d), dtype="<u8").astype(np.uint64)


def written(public: Public) -> Sent:
    """An agent's public keys."""
    return {"c": text(public.c), "s": text(public.s), "b": text(public.b)}


def read(sent: Mapping[str, Any]) -> Public:
    """Reads the keys that :func:`written` was given.

    Raises:
        MalformedError: If it is none.
    """
    return Public(*(binary(sent[name], masking.SEED) for name in ("c", "s", "b")))
