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
from raytune_searchers._channel import LOST, MissingHost
from raytune_searchers.hosts.base import RunHost

T = TypeVar("T")

_NOTES = (
    "Ray Tune's results show which agent ran when, for how long, and whether its trial failed",
    "whoever can run code on the cluster, or read an agent's database, can read its trials",
)

_AGENTS = "on the same agents its privacy loss adds to this one's"

SERVER = MissingHost(
    LOST.format(
        "The server of this federation",
        _AGENTS,
        "vault='sqlite:////private/server.db' (or 'env:NAME_OF_A_VARIABLE_WITH_A_URL') and "
        "agent_vaults='sqlite:////private/{agent}.db'",
    ),
    "No server is alive for this agent's federation: it ends with its driver. Where it has a "
    "database, a restored experiment goes on with it.",
    _AGENTS,
)


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
        vault_id: Identity of the vault, if it must exist already.
        seen: How far the driver has seen the chain of releases: the ledger must hold it.
    """

    run: str
    config: FederationConfig
    agents: tuple[str, ...] | None
    space: Space
    maximize: bool
    deadline: float | None
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


class ServerHost(RunHost[FederatedServer]):
    """A federation's server behind one method that never raises.

    Args:
        settings: The run.
        url: Database of ledger and broadcasts; None keeps them in this process.
        noise: Test injection.
    """

    KIND = "federation/"
    MISSING = SERVER
    FIXED = ("config", "agents", "space", "maximize")

    def __init__(
        self, settings: ServerSettings, url: str | None, noise: NoiseSource | None
    ) -> None:
        super().__init__(settings, url, noise)
        self._incarnation = uuid.uuid4().hex
        self._sent: dict[int, tuple[int, int]] = {}

    def _opened(self) -> FederatedServer:
        s: ServerSettings = self._settings
        if s.vault_id is not None:
            self._open_vault().close()  # that it is the one the run started with
        return FederatedServer(
            s.config,
            space=s.space,
            agents=s.agents,
            deadline=s.deadline,
            vault=self._url,
            run_name=s.run,
            noise=self._noise,
        )

    # The driver's side ----------------------------------------------------------------------

    def rounds(self) -> Status:
        """Closes the open round if its deadline is over, and tells where the rounds are."""
        released = _translated(self._session.poll)
        finished = released >= self._settings.config.n_rounds
        return Status(released, finished, self._incarnation, self.head())

    def _guarantee(self, reasons: list[str]) -> FederationGuarantee:
        claimed = _translated(self._session.guarantee)
        told = tuple(dict.fromkeys((*claimed.reasons, *reasons)))
        protected, notes = claimed.protected and not reasons, (*_NOTES, *claimed.notes)
        return replace(claimed, notes=notes, protected=protected, reasons=told)

    def _done(self) -> int:
        return len(_translated(self._session.broadcasts))

    def _details(self) -> dict[str, Any]:
        """Returns what the rounds have broadcast, in two numbers each."""
        return {"rounds": [round_of(b) for b in _translated(self._session.broadcasts)]}

    def ledger(self) -> list[Any]:
        """One charge a released round."""
        return _translated(self._session.ledger)

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
        t = _translated(lambda: self._session.connect(i).submit(vector))
        if t is not None:
            self._sent[i] = number, t
        return Receipt(t, self._incarnation)

    def broadcasts(self, after: int) -> list[Broadcast]:
        """Returns the broadcasts released after so many rounds."""
        return _translated(self._session.broadcasts)[after:]

    def leave(self, agent: int) -> None:
        """An agent sends nothing more: rounds need not wait for it."""
        _translated(self._session.connect(agent).leave)


def _translated(call: Callable[[], T]) -> T:
    """As a host's errors travel: a round that the vault refused is an error of the vault."""
    try:
        return call()
    except FederationError as error:
        raise VaultError(str(error)) from None
