"""A federation's server in a Ray actor: sums in its memory, ledger and broadcasts in its vault.

Agents' hosts seal their vectors to its key. No operation waits for a round: the actor answers at
once, whatever is open.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from privbo_plugins.algorithms.dp_fts_de import Broadcast, FederationConfig
from privbo_plugins.errors import FederationError, VaultError
from privbo_plugins.federation import FederatedServer
from privbo_plugins.privacy.guarantee import FederationGuarantee
from privbo_plugins.privacy.source import NoiseSource
from privbo_plugins.sealing import Message
from privbo_plugins.sessions.broadcasts import round_of
from privbo_plugins.spaces import Space
from raytune_searchers._channel import Gone
from raytune_searchers.hosts.base import UNSEEN, Host

T = TypeVar("T")

_UNPROTECTED, _NOTE = "unprotected", "note"

_NOTES = (
    "Ray Tune's results show which agent ran when, for how long, and whether its trial failed",
    "whoever can run code on the cluster, or read an agent's database, can read its trials",
)

SERVER = Gone(
    lost=(
        "The server of this federation is gone, and with it the ledger: it lay in the memory of "
        "a Ray actor, which ended with its driver or was killed. Nothing more can be released "
        "for this run; what it has broadcast stays covered by its declared epsilon. Start a new "
        "run with another search object (on the same agents its privacy loss adds to this one's), "
        "and give it databases to survive that: vault='sqlite:////private/server.db' (or "
        "'env:NAME_OF_A_VARIABLE_WITH_A_URL') and agent_vaults='sqlite:////private/{agent}.db'."
    ),
    absent=(
        "No server is alive for this agent's federation: it ends with its driver. Where it has a "
        "database, a restored experiment goes on with it."
    ),
)
"""What is said of a federation's server."""


@dataclass(frozen=True)
class ServerSettings:
    """Everything public that a server needs to start or join a run.

    Attributes:
        run: Name of the run.
        config: The federation's settings.
        agents: Names of the agents; None for their numbers.
        space: With descriptions instead of choices.
        maximize: Whether large values are good.
        deadline: Seconds after which a round closes without those that have not sent.
        hold: Run rounds on the server's own clock.
        vault_id: Identity of the vault, if it must exist already.
        seen: How far the driver has seen the chain of releases: the ledger must hold it.
    """

    run: str
    config: FederationConfig
    agents: tuple[str, ...] | None
    space: Space
    maximize: bool
    deadline: float | None
    hold: bool
    vault_id: str | None = None
    seen: tuple[int, str] = (0, "")


class Status(NamedTuple):
    """Where the rounds are.

    Attributes:
        released: Rounds released so far.
        finished: Whether these are all.
        incarnation: Changes when the server's process does, and an open round is lost.
        head: The end of the chain of releases.
    """

    released: int
    finished: bool
    incarnation: str
    head: tuple[int, str]


class Receipt(NamedTuple):
    """What becomes of a vector.

    Attributes:
        round: The round it counts in; None if no round is left.
        incarnation: Of the server that took it.
    """

    round: int | None
    incarnation: str


class ServerHost(Host):
    """A federation's server behind one method that never raises.

    Args:
        settings: The run.
        url: Database of ledger and broadcasts; None keeps them in this process.
        noise: Test injection.
    """

    KIND = "federation/"
    GONE = SERVER
    FIXED = ("config", "agents", "space", "maximize")
    ADDS = "on the same agents its privacy loss adds to this one's"

    def __init__(
        self, settings: ServerSettings, url: str | None, noise: NoiseSource | None
    ) -> None:
        super().__init__(settings, url, noise)
        self._opened: FederatedServer | None = None
        self._incarnation = uuid.uuid4().hex
        self._sent: dict[int, tuple[int, int]] = {}

    @property
    def _server(self) -> FederatedServer:
        if self._opened is None:
            s: ServerSettings = self._settings
            if s.vault_id is not None:
                self._open_vault().close()  # that it is the one the run started with
            server = FederatedServer(
                s.config,
                space=s.space,
                agents=s.agents,
                deadline=s.deadline,
                hold=s.hold,
                vault=self._url,
                run_name=s.run,
                noise=self._noise,
            )
            self._remember(server.run, s.seen)
            self._opened = server
        return self._opened

    # The driver's side ----------------------------------------------------------------------

    def join(self, settings: ServerSettings) -> tuple[str, tuple[str, ...]]:
        """Identity of the vault, and why nothing may be claimed, if so from the start.

        Raises:
            ValueError: If the driver's settings are not those of the run.
        """
        server = self._server
        self._agree(server.run, settings)
        return server.run.vault.vault_id, _translated(server.guarantee).reasons

    def status(self) -> Status:
        """Closes the open round if its deadline is over, and tells where the rounds are."""
        server = self._server
        released = _translated(server.poll)
        head, finished = server.run.head(), released >= server.config.n_rounds
        return Status(released, finished, self._incarnation, (head.n, head.digest))

    def mark_unprotected(self, reason: str) -> None:
        """Records for ever that nothing may be claimed."""
        self._server.run.mark(_UNPROTECTED, reason)

    def note(self, text: str) -> None:
        """Records a fact that the guarantee reports."""
        self._server.run.mark(_NOTE, text)

    def report(self, unaudited: bool) -> dict[str, Any]:
        """Everything public: the guarantee, and what the rounds have broadcast in two numbers.

        Args:
            unaudited: Whether a result passed by while the vault did not answer.
        """
        server = self._server
        claimed = _translated(server.guarantee)
        guarantee = replace(claimed, notes=(*_NOTES, *claimed.notes))
        if unaudited:
            guarantee = unprotected(guarantee, [UNSEEN])
        head = server.run.head()
        rounds = [round_of(broadcast) for broadcast in _translated(server.broadcasts)]
        return {"guarantee": guarantee, "rounds": rounds, "head": (head.n, head.digest)}

    def ledger(self) -> list[Any]:
        """One charge a released round."""
        return _translated(self._server.ledger)

    # The agents' side -----------------------------------------------------------------------

    def send(self, agent: str, message: Message, number: int) -> Receipt:
        """Adds an agent's vector to the open round.

        Args:
            agent: The agent's number on the roster.
            message: The vector.
            number: The trial that it will choose from this round's broadcast: whatever it sends
                for the same trial again counts as what it sent first.

        Raises:
            VaultError: If the round was complete, and could not be released.
        """
        vector, i = self._read(message, "send", agent), int(agent)
        known = self._sent.get(i)
        if known is not None and known[0] >= number:
            return Receipt(known[1], self._incarnation)
        t = _translated(lambda: self._server.connect(i).submit(vector))
        if t is not None:
            self._sent[i] = number, t
        return Receipt(t, self._incarnation)

    def broadcasts(self, after: int) -> list[Broadcast]:
        """Returns the broadcasts released after so many rounds."""
        return _translated(self._server.broadcasts)[after:]

    def leave(self, agent: int) -> None:
        """An agent sends nothing more: rounds need not wait for it."""
        _translated(self._server.connect(agent).leave)


def unprotected(guarantee: FederationGuarantee, reasons: list[str]) -> FederationGuarantee:
    """The same with nothing claimed, for these reasons too."""
    told = tuple(dict.fromkeys((*guarantee.reasons, *reasons)))
    return replace(guarantee, protected=False, reasons=told)


def _translated(call: Callable[[], T]) -> T:
    """As a host's errors travel: a round that the vault refused is an error of the vault."""
    try:
        return call()
    except FederationError as error:
        raise VaultError(str(error)) from None
