"""An agent's encrypted way to its federation's server in another process: gRPC over TLS.

Every call is one request and one reply. The agent accepts one certificate, that of its invitation,
and shows a secret of its own with each call, so a machine on the path can neither read nor change
nor repeat anything. Calls name the server's *epoch*, which is new whenever its process is: an
agent whose server was started again learns it before its request does anything, and first makes
sure that nothing of what it has seen was lost. :mod:`~privbo_plugins.federation.listening` is the
other side.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.dp_fts_de.config import FederationConfig
from privbo_plugins.algorithms.dp_fts_de.server import Broadcast
from privbo_plugins.errors import FederationError, PrivacyError, PrivacyWarning, warn
from privbo_plugins.federation import messages
from privbo_plugins.federation.calls import PATIENCE, Calls
from privbo_plugins.federation.identity import fingerprint, invitation_from, own_proof
from privbo_plugins.federation.messages import MalformedError
from privbo_plugins.privacy.guarantee import FederationGuarantee
from privbo_plugins.settings import named

if TYPE_CHECKING:
    from privbo_plugins.federation.phases import Masking, Sent

Array = NDArray[np.float64]

_NOT_COMPARED = (
    "these settings are the server's word: connect(agreed=) compares them with what the "
    "institutions agreed upon"
)
_NO_NOISE = "This federation adds no noise: nothing is protected. Give agreed= if that was agreed."
_WAIT: Any = object()
"""The round has not ended yet."""


class RemoteLink:
    """A link to a server in another process; made by :func:`connect`.

    It may be used from several threads and in a forked child. A connection that was lost is opened
    again by the next call; a vector that is sent again counts once. It cannot be pickled, because
    it knows a secret.
    """

    def __init__(
        self,
        invitation: str,
        proof: tuple[bytes, bytes] | None = None,
        agreed: FederationConfig | None = None,
    ) -> None:
        self._calls = Calls(invitation_from(invitation), proof)
        self._masking: Masking | None
        self._start_process()
        self._space: dict[str, Any] | None = None
        self._sent: set[int] = set()
        self._known: list[Broadcast] = []
        self._seen = 0, ""
        self._compared = agreed is not None
        self._greeting = self._greeted(agreed=agreed)

    def __repr__(self) -> str:
        return f"RemoteLink(agent {self.agent} at {self._calls.place!r})"

    def __reduce__(self) -> Any:
        raise PrivacyError(
            "A link to a federation's server cannot be pickled: it knows its agent's secret. Put "
            "the invitation into an environment variable of the other process, and call "
            "connect('env:NAME') there."
        )

    @property
    def agent(self) -> int:
        """The agent's number on the roster, from 0."""
        return self._calls.invitation.agent

    @property
    def config(self) -> FederationConfig:
        """The federation's public settings."""
        return self._greeting.config

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the server's certificate, as ``privbo federation serve`` prints it."""
        return fingerprint(self._calls.invitation.certificate)

    def join(self, space: Mapping[str, Any]) -> None:
        """Agrees on the space (:meth:`Space.to_dict`) that all agents tune.

        Raises:
            SpaceChangedError: If the others tune another one.
            FederationError: If the server cannot be reached or does not go on.
            ValueError: If its description is too long.
        """
        size = len(messages.encoded(space))
        if size > messages.ROOM // 2:
            raise ValueError(
                f"The description of the search space takes {size} bytes, more than "
                f"{messages.ROOM // 2}: use fewer choices, or numbers that stand for them."
            )
        self._call("join", {"space": dict(space)})
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
        if self.config.aggregated:
            return self._masks().submit(vector)
        sent = {"key": secrets.token_hex(16), "vector": messages.packed(vector)}
        t: int | None = self._call("submit", sent, messages.optional(messages.count), once=True)
        if t is not None:
            with self._lock:
                self._sent = {*self._sent, t}
        return t

    def collect(self, t: int) -> Broadcast | None:
        """Waits for the end of a round.

        Returns:
            None if the server knows no such round any longer, or was started again since this
            agent's vector was sent there.

        Raises:
            FederationError: If the server cannot be reached or does not go on.
        """
        if self.config.aggregated:
            self._masks().run(t)
        deadline, began = self._greeting.deadline, time.monotonic()
        asked, pause = {"round": int(t), "sent": t in self._sent}, 0.0
        while deadline is None or time.monotonic() < began + deadline + PATIENCE:
            asked_at = time.monotonic()
            found = self._call("collect", asked, messages.optional(self._resting))
            if found is not _WAIT:
                return found  # type: ignore[no-any-return]
            pause = 0.2 if time.monotonic() < asked_at + 0.2 else 0.0
            time.sleep(pause)  # where many threads of this agent wait
        raise self._calls.silent()

    def _masks(self) -> Masking:
        """This agent's part in rounds whose sum alone the server sees; one a process."""
        self._check_process()
        with self._lock:
            if self._masking is None:
                from privbo_plugins.federation.phases import Masking

                self._masking = Masking(self, self.config, self.agent)
            return self._masking

    def enter(self, keys: Sent) -> Sent | None:
        """Joins the open attempt at a round; see :mod:`privbo_plugins.federation.phases`."""
        found: Sent | None = self._call("enter", keys, messages.optional(dict))
        return found

    def turn(self, asked: Sent) -> Sent:
        """Sends what a phase asks for, and hears how it ended; likewise."""
        began = time.monotonic()
        found: Sent = self._call("turn", asked, dict)
        if found.get("waiting") and time.monotonic() < began + 0.2:
            time.sleep(0.2)  # where many threads of this agent wait
        return found

    def _resting(self, found: Mapping[str, Any]) -> Any:
        return _WAIT if found.get("waiting") is True else self._received(found)

    def _received(self, found: Mapping[str, Any]) -> Broadcast:
        """Remembers how far the server was: less later means a lost ledger."""
        broadcast, chain = messages.as_broadcast(found, self.config)
        with self._lock:
            self._seen = max(self._seen, (broadcast.round, chain))
        return broadcast

    def broadcasts(self) -> list[Broadcast]:
        """Everything released so far; what is known already is not sent again.

        Raises:
            FederationError: If the server cannot be reached or does not go on.
        """
        self._check_process()
        with self._reading:
            for _ in range(self.config.n_rounds + 2):  # pages are not empty
                if not self._call("broadcasts", {"after": len(self._known)}, self._turn):
                    return list(self._known)
        raise self._calls.another_version()

    def _turn(self, found: Mapping[str, Any]) -> bool:
        """Takes a page; whether there are more."""
        page = [self._received(sent) for sent in found["page"]]
        first = len(self._known) + 1
        if [b.round for b in page] != list(range(first, first + len(page))):
            raise MalformedError
        self._known += page
        return bool(found["more"])

    def leave(self) -> None:
        """Says that this agent sends nothing more, so that rounds need not wait for it.

        Raises:
            FederationError: If the server cannot be reached.
        """
        self._call("leave", {})

    def guarantee(self) -> FederationGuarantee:
        """Makes the claim for the broadcasts: figures of the settings that the agent compared.

        Raises:
            FederationError: If the server cannot be reached or does not go on.
        """
        config, seen = self.config, self._seen[0]
        found: FederationGuarantee = self._call(
            "guarantee", {}, lambda sent: messages.as_guarantee(sent, config, seen)
        )
        return found if self._compared else replace(found, notes=(*found.notes, _NOT_COMPARED))

    def close(self) -> None:
        """Closes the connection; the next call opens one again."""
        self._calls.close()

    # Calls --------------------------------------------------------------------------------------

    def _start_process(self) -> None:
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._pid, self._masking = os.getpid(), None

    def _check_process(self) -> None:
        if self._pid != os.getpid():  # a forked child: locks may be held, and masks are another's
            self._start_process()

    def _call(
        self,
        call: str,
        message: dict[str, Any],
        read: Callable[[Any], Any] = lambda _: None,
        *,
        once: bool = False,
    ) -> Any:
        """Makes a call, in the epoch of the server's process.

        Args:
            call: Its name.
            message: What is sent.
            read: Makes sense of the answer.
            once: Whether it must not be repeated if the server may have used it already.
        """
        self._check_process()
        repeated = False
        for _ in range(3):
            known = max(self._seen[0], self._greeting.n_released)
            reply, again = self._calls.ask(call, message | {"epoch": self._greeting.epoch})
            repeated |= again
            if "again" not in reply:
                return self._calls.answered(reply, read)
            self._renew()
            if once and repeated and self._greeting.n_released > known:
                raise FederationError(
                    f"The federation's server at {self._calls.place} was started again while this "
                    "agent's vector was on its way, and has released a round since: the vector "
                    "may be in it, and is not sent again. The agent takes part in the next round."
                )
        raise self._calls.another_version()

    def _renew(self) -> None:
        """Meets a server that was started again."""
        self._greeting = found = self._greeted(self._greeting)
        if self._space is not None:  # it may know nothing
            self._calls.answered(
                self._calls.ask("join", {"space": self._space, "epoch": found.epoch})[0],
                lambda _: None,
            )

    def _greeted(
        self, before: messages.Greeting | None = None, agreed: FederationConfig | None = None
    ) -> messages.Greeting:
        last, chain = self._seen
        reply = self._calls.ask("greet", {"last": last})[0]
        found: messages.Greeting = self._calls.answered(reply, messages.as_greeting)
        agreed = before.config if before is not None else agreed or found.config
        if found.config != agreed:
            raise (PrivacyError if before is None else FederationError)(
                f"The federation's server at {self._calls.place} runs with other settings than "
                f"were agreed: {_differences(found.config, agreed)}. Nothing was sent. Ask its "
                "operator which of them hold, and start this agent again with those."
            )
        known = max(last, *(t - 1 for t in self._sent), before.n_released if before else 0, 0)
        if found.n_released < known or (last and found.chain != chain):
            raise FederationError(
                f"The federation's server at {self._calls.place} has lost its ledger: its record "
                "of what it released before is missing or differs, so it would spend its budget "
                "again. Nothing was given to it. Its operator has to put its database back."
            )
        return found


def _differences(told: FederationConfig, agreed: FederationConfig) -> str:
    """Every setting that is not as agreed; they are public."""
    told_of, agreed_of = (named(one, FederationConfig) for one in (told, agreed))
    pairs = ((name, told_of[name], agreed_of[name]) for name in agreed_of)
    return ", ".join(f"{name}={a!r} in place of {b!r}" for name, a, b in pairs if a != b)


def connect(
    invitation: str,
    *,
    cert: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
    agreed: FederationConfig | None = None,
) -> RemoteLink:
    """A link to a federation's server in another process.

    Args:
        invitation: The text that :meth:`FederatedServer.invitation` gave for this agent, or
            ``env:NAME`` for the text that an environment variable holds. It is a secret: with
            it any process can send in the agent's name.
        cert: File of the agent's own certificate (PEM), if the server asks for one.
        key: File of that certificate's private key.
        agreed: The settings that the institutions agreed upon: a server that runs with any other
            (whom it is trusted by, noise, budget, rounds, who may be missing) is refused. None
            takes what the server says on trust, and its guarantee says so.

    Raises:
        FederationError: If the server cannot be reached or does not accept the invitation.
        PrivacyError: If other users can read the private key or write where it lies, or the
            server runs with other settings than were agreed.
        ValueError: If the text is no invitation, the variable is not set, or a file is no PEM.

    Warns:
        PrivacyWarning: If the server adds no noise and nothing was agreed.

    Example:
        >>> from privbo_plugins.federation import FederatedServer
        >>> from privbo_plugins.spaces import Float, Space
        >>> space = Space({"x": Float(0, 1)})
        >>> config = FederationConfig(n_agents=1, epsilon=2.0, n_rounds=1)
        >>> server = FederatedServer(config, space=space)
        >>> address = server.listen()
        >>> link = connect(server.invitation(0), agreed=config)  # in the agent's process
        >>> link.join(space.to_dict())
        >>> t = link.submit(np.zeros(link.config.message_length))
        >>> link.collect(t).round
        1
        >>> link.close()
        >>> server.close()
    """
    link = RemoteLink(invitation, own_proof(cert, key), agreed)
    if agreed is None and link.config.noise_multiplier == 0:
        warn(_NO_NOISE, PrivacyWarning)
    return link
