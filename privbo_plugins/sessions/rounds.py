"""The rounds of a federation: opened by the first message, closed by the last one or a deadline.

A round opens with the first message, draws one coin an agent of the roster, adds what arrives to
an exact sum and forgets it, and closes when every agent has sent or the deadline is over. Closing
charges the ledger, draws the noise and stores the broadcast in one transaction
(:mod:`privbo_plugins.sessions.broadcasts`). Agents' vectors live in this process's memory for as
long as adding them takes.

With ``trust="aggregate"`` a round is an attempt of :mod:`privbo_plugins.sessions.aggregation`
instead: agents send masked vectors with noise of their own. The ledger is charged before the sum
is opened; an attempt that ends between the two has cost its round.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.dp_fts_de.agent import shared_model
from privbo_plugins.algorithms.dp_fts_de.model import SharedModel
from privbo_plugins.algorithms.dp_fts_de.server import Broadcast, RoundSum
from privbo_plugins.errors import FederationError, PrivacyError, SpaceChangedError
from privbo_plugins.federation.messages import understood
from privbo_plugins.privacy.guarantee import FederationGuarantee
from privbo_plugins.sessions.broadcasts import BroadcastLedger, claimed_of
from privbo_plugins.sessions.settings import FederatedServerSettings
from privbo_plugins.spaces import Float, Space
from privbo_plugins.store.run import Run, begin_or_join
from privbo_plugins.store.vault import open_vault

if TYPE_CHECKING:
    from privbo_plugins.federation.phases import Sent
    from privbo_plugins.sessions.aggregation import Attempt

Array = NDArray[np.float64]
T = TypeVar("T")

_ANY_SPACE = Space({"x": Float(0.0, 1.0)}).to_dict()
"""The published mechanism does not depend on the space."""


class Pending(Enum):
    """A round, or a phase of it, that is not over."""

    PENDING = "pending"


PENDING = Pending.PENDING


class VisibleRound:
    """An open round whose server sees the vectors.

    Args:
        total: The sum so far.
        now: The server's clock.
    """

    why_given_up = ""

    def __init__(self, total: RoundSum, now: float) -> None:
        self.total, self.t, self.opened = total, total.t, now
        self.sent: set[int] = set()

    def complete(self, left: set[int]) -> bool:
        """Tells if no agent is waited for; agents in ``left`` send no more."""
        return len(self.sent | left) == self.total.config.n_agents

    def end_phase(self, ledger: BroadcastLedger, _now: float) -> bool:
        """Releases the round, which is then over."""
        ledger.release(self.total)
        return True


class Rounds:
    """Runs the rounds of one federation, whichever link brings an agent's messages.

    All state is behind :attr:`lock`, which is notified when a round ends. Every method that shows
    how far the rounds are first closes what the server's clock has closed (``hold=True``): else
    it would tell whether another agent has sent meanwhile.

    Args:
        given: The server's settings.

    Raises:
        ValueError: If times make no sense, or the run was started with other settings.
        VaultError: If the vault cannot be opened.
    """

    def __init__(self, given: FederatedServerSettings) -> None:
        _check_clock(given)
        self.config, self.deadline, self.hold = given.config, given.deadline, given.hold
        self.run = _run_of(given)
        self.ledger = BroadcastLedger(self.run, self.config, given.noise)
        self.lock = threading.Condition(threading.RLock())
        self.current: VisibleRound | Attempt | None = None
        self.given_up: Attempt | None = None
        """The attempt that was given up last."""
        self._left: set[int] = set()
        self._shared: SharedModel | None = None
        with self.run.transaction() as tx:
            self.space: dict[str, Any] | None = tx.frozen().get("space")
        if given.space is not None:
            self.agree(given.space.to_dict())
        if self.hold and self.ledger.n_left:
            self.current = self._open()

    def agree(self, space: dict[str, Any]) -> None:
        """Agrees on the space that all agents tune.

        Raises:
            SpaceChangedError: If the others tune another one, or nothing varies in it.
        """
        try:
            varies = Space.from_dict(space).varies
        except (KeyError, TypeError, ValueError):
            varies = False
        if not varies:
            raise SpaceChangedError("A federation's search space needs a parameter that varies.")
        with self.lock:
            if self.space is None:
                with self.run.transaction() as tx:
                    self.space = tx.frozen().get("space")
                    if self.space is None:
                        tx.freeze({"space": space})
                        self.space = space
            if self.space != space:
                raise SpaceChangedError(
                    "All agents of a federation tune the same parameters with the same ranges; "
                    f"this one tunes {', '.join(space)}, the federation "
                    f"{', '.join(self.space or ())}, or their ranges differ."
                )

    # Messages of agents -------------------------------------------------------------------------

    def submit(self, agent: int, message: Array) -> int | None:
        """Adds an agent's vector to the open round; its number, or None once there is none.

        Raises:
            PrivacyError: If the server must not see vectors.
            ValueError: If the vector has another length than ``config.message_length``.
        """
        if self.config.aggregated:
            raise PrivacyError(
                "A federation with trust='aggregate' takes masked vectors alone. Nothing was used "
                "of this one; connect with the version that the server runs."
            )
        with self.lock:
            current = self._joined(agent)
            if not isinstance(current, VisibleRound):
                return None
            if agent not in current.sent:  # the first message counts
                current.total.add(agent, message)
                current.sent.add(agent)
                self._close_if_complete()
            return current.t

    def enter(self, agent: int, asked: Sent) -> Sent | None:
        """Joins the open attempt with an agent's keys; None once all rounds are used up.

        Raises:
            MalformedError: If the keys are none.
            PrivacyError: If the server sees vectors, so that no agent masks them.
        """
        with self.lock:
            current = self._joined(agent)
            if current is None:
                return None
            if isinstance(current, VisibleRound):
                raise PrivacyError("This federation's server takes vectors, not keys for masks.")
            part = current.enter(agent, asked)
            self._close_if_complete()
            name = current.name if part else None
            return {"round": current.t, "attempt": name, "norm": float(current.measure.S)}

    def turn(
        self,
        agent: int,
        asked: Sent,
        ended: threading.Event | None = None,
        patience: float = math.inf,
    ) -> Sent:
        """Takes what an agent sends in a phase, and tells how that phase ended.

        Args:
            agent: The agent's number.
            asked: Names the attempt and the phase, and holds what is sent, unless it was.
            ended: Ends the wait, once the caller has set it and notified the lock.
            patience: Seconds after which it ends too.

        Raises:
            FederationError: If the attempt was given up, with the reason.
            MalformedError: If the message is none of this phase.
        """
        name, phase, sent = understood(_asked, asked)

        def told() -> Sent | Pending:
            current = self._named(name)
            if current is None:
                return {"over": True}
            if current.phase > phase:
                return current.told(agent, phase) or {"over": True}
            return PENDING

        with self.lock:
            current = self._named(name)
            if current is not None and sent is not None and phase == current.phase:
                current.post(agent, sent)
                self._close_if_complete()
            found = self._awaited(told, ended, patience)
        if found is PENDING:
            return {"waiting": True}
        return found or {"over": True}

    def collect(
        self,
        t: int,
        sender: int | None = None,
        ended: threading.Event | None = None,
        patience: float = math.inf,
    ) -> Broadcast | Pending | None:
        """Waits for the end of round t.

        Args:
            t: Its number.
            sender: An agent that has sent to it, if so; a server that was started again meanwhile
                has not got what it sent, and says so at once.
            ended: Ends the wait, once the caller has set it and notified the lock.
            patience: Seconds after which it ends too.

        Returns:
            What was released; PENDING if the round is open; None if there is no such round.

        Raises:
            FederationError: If the round cannot be released.
        """

        def told() -> Broadcast | Pending | None:
            if t in self.ledger.known:
                return self.ledger.known[t]
            current = self.current
            if current is None or current.t != t:
                return None
            return PENDING if sender is None or sender in current.sent else None

        with self.lock:
            self.advance()
            return self._awaited(told, ended, patience)

    def leave(self, agent: int) -> None:
        """Takes note that an agent sends nothing more."""
        with self.lock:
            self._left.add(agent)
            self._close_if_complete()

    def _named(self, name: str) -> Attempt | None:
        """The open attempt, if it is the one of this name.

        Raises:
            FederationError: If that one was given up.
        """
        if self.given_up is not None and self.given_up.name == name:
            raise FederationError(self.given_up.why_given_up)
        current = self.current
        if current is None or isinstance(current, VisibleRound) or current.name != name:
            return None
        return current

    def _awaited(
        self, told: Callable[[], T | Pending], ended: threading.Event | None, patience: float
    ) -> T | Pending | None:
        """Waits until there is something to tell, and closes meanwhile what is due."""
        until = time.monotonic() + patience
        while (found := told()) is PENDING and self.current is not None:
            if ended is not None and ended.is_set():
                return None
            if self._over():
                self.close_round()
            elif (left := until - time.monotonic()) <= 0:
                return PENDING
            else:
                least = min(left, self.time_left())
                self.lock.wait(None if math.isinf(least) else least)
        return found

    # Opening and closing ------------------------------------------------------------------------

    def _joined(self, agent: int) -> VisibleRound | Attempt | None:
        """The open round, which an agent that is back opens; None once all are used up."""
        self.advance()
        if self.current is None:
            if self.ledger.n_left == 0:
                return None
            self.current = self._open()
        self._left.discard(agent)
        return self.current

    def _open(self) -> VisibleRound | Attempt:
        t = len(self.ledger.known) + 1
        S = self._model().clipping_norm(t)
        if not 1e-9 <= S <= 1e9:
            raise FederationError(
                f"The prior and the space give a clipping norm of {S:.3g}, outside [1e-9, 1e9]. "
                "Give another prior=, or clipping_norm=."
            )
        if self.config.aggregated:
            from privbo_plugins.sessions.aggregation import Attempt  # with libraries of an extra

            return Attempt(self.config, t, S, time.monotonic())
        return VisibleRound(RoundSum(self.config, t, self.ledger.coins(), S), time.monotonic())

    def _model(self) -> SharedModel:
        if self._shared is None:
            if self.space is None and self.config.population == "prior":
                raise FederationError("No agent has joined yet, so the space is not known.")
            self._shared = shared_model(self.config, Space.from_dict(self.space or _ANY_SPACE))
        return self._shared

    def time_left(self) -> float:
        """Seconds until the open round's deadline; infinite without a round or a deadline."""
        if self.current is None or self.deadline is None:
            return math.inf
        return self.current.opened + self.deadline - time.monotonic()

    def _complete(self) -> bool:
        """Tells if no agent is waited for; a round on the server's clock waits for all of it."""
        current = self.current
        return current is not None and not self.hold and current.complete(self._left)

    def _over(self) -> bool:
        """Tells if the open round is due, or complete and open: the vault refused it."""
        return self._complete() or self.time_left() <= 0

    def _close_if_complete(self) -> None:
        if self._complete():
            self.close_round()

    def close_round(self) -> None:
        """Closes the open round, if any, without those that have not sent.

        It is released, once, or goes on to its next phase. On the server's clock the next round
        begins with the deadline of this one.
        """
        with self.lock:
            current = self.current
            if current is None:
                return
            due = min(current.opened + (self.deadline or 0.0), time.monotonic())
            try:
                if current.end_phase(self.ledger, time.monotonic()):
                    self.current = None
            finally:  # agents that wait try again after a failure, and hear the same
                self.lock.notify_all()
            if current.why_given_up and not isinstance(current, VisibleRound):
                self.given_up = current
            if self.hold and self.ledger.n_left:
                self.current = self._open()
                self.current.opened = due

    def poll(self) -> int:
        """Closes the open round if it is due, and returns how many rounds were released."""
        with self.lock:
            self.advance()
            if not self.hold and self._over():
                self.close_round()
            return len(self.ledger.known)

    # What was released --------------------------------------------------------------------------

    def advance(self) -> None:
        """Closes what the server's clock has closed: a function of time alone.

        Raises:
            FederationError: If a round that is due cannot be released.
        """
        with self.lock:
            while self.hold and self._over():
                self.close_round()

    def broadcasts(self) -> list[Broadcast]:
        """Lists all broadcasts in order; raises as :meth:`advance`."""
        with self.lock:
            self.advance()
            return [self.ledger.known[t] for t in sorted(self.ledger.known)]

    def guarantee(self) -> FederationGuarantee:
        """Makes the claim for all broadcasts; raises as :meth:`advance`."""
        self.advance()
        return claimed_of(self.run, self.config, held=self.hold)


def _asked(asked: Mapping[str, Any]) -> tuple[str, int, Mapping[str, Any] | None]:
    return asked["attempt"], int(asked["phase"]), asked["sent"]


def _run_of(given: FederatedServerSettings) -> Run:
    settings = given.config.to_dict() | {"noise_multiplier": given.config.noise_multiplier}
    other = ValueError(
        f"The vault holds the federation {given.run_name!r} with other settings (or a noise "
        "multiplier that this version would not choose for them). Use the same, or another "
        "run_name=."
    )
    vault, key = open_vault(given.vault), f"federation:{given.run_name}"
    return begin_or_join(vault, key, settings, otherwise=other)


def _check_clock(given: FederatedServerSettings) -> None:
    deadline = given.deadline
    if deadline is not None and not 0 < deadline < threading.TIMEOUT_MAX:
        raise ValueError(f"deadline must be a positive number of seconds, got {deadline}.")
    if given.hold and given.config.aggregated:
        raise ValueError(
            "hold=True hides who is there from others, and trust='aggregate' shows it to the "
            "server and to all agents: give one of them."
        )
    if given.hold and (deadline is None or given.space is None):
        raise ValueError(
            "hold=True runs rounds on the server's clock alone: give deadline= and space=."
        )
