"""What the host of a federation's server can be asked: it holds sums, a ledger and broadcasts.

Agents' hosts seal their vectors to its key. No operation waits for a round: the actor answers at
once, whatever is open.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from privbo_plugins.algorithms.dp_fts_de import Broadcast, FederationConfig
from privbo_plugins.errors import FederationError, VaultError
from privbo_plugins.federation import FederatedServer
from privbo_plugins.privacy.guarantee import FederationGuarantee
from privbo_plugins.sealing import Message
from privbo_plugins.sessions.broadcasts import round_of
from privbo_plugins.spaces import Space
from raytune_searchers._channel import LOST, MissingHost
from raytune_searchers.hosts.base import RunHost, Settings, by_name, remember

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


@dataclass(frozen=True, kw_only=True)
class ServerSettings(Settings):
    """Everything public that a server needs to start or join a run.

    Attributes:
        config: The federation's settings.
        agents: Names of the agents; None for their numbers.
        space: With descriptions instead of choices.
        maximize: Whether large values are good.
        deadline: Seconds after which a round closes without those that have not sent.
    """

    config: FederationConfig
    agents: tuple[str, ...] | None = None
    space: Space
    maximize: bool
    deadline: float | None = None


class Status(NamedTuple):
    """Where the rounds are.

    Attributes:
        released: Rounds released so far.
        incarnation: Changes when the server's process does, and an open round is lost.
        head: The end of the chain of releases.
    """

    released: int
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
    """The host of a federation's server."""

    missing, prefix = SERVER, "federation/"
    fixed = ("config", "agents", "space", "maximize")
    operations = RunHost.operations | by_name("rounds send broadcasts leave session.ledger")

    def open(self) -> FederatedServer:
        """Opens the server."""
        s: ServerSettings = self.settings
        if s.vault_id is not None:
            self.open_vault().close()  # that it is the one the run started with
        server = FederatedServer(
            s.config,
            space=s.space,
            agents=s.agents,
            deadline=s.deadline,
            vault=self.url,
            run_name=s.run,
            noise=self.noise,
        )
        remember(server.run, s.seen)
        self._sent: dict[str, tuple[int, int]] = {}
        """Of each agent the last trial that it has sent a vector for, and its round."""
        return server

    def translate(self, error: BaseException) -> Exception:
        """As a host's errors travel: a round that the vault refused is an error of the vault."""
        if isinstance(error, FederationError):
            return VaultError(str(error))
        return super().translate(error)

    # The driver's side ----------------------------------------------------------------------

    def rounds(self) -> Status:
        """Closes the open round if its deadline is over, and tells where the rounds are."""
        return Status(self.session.poll(), self._incarnation, self.head())

    @property
    def _incarnation(self) -> str:
        return self.public_key().hex()  # another one in each process

    def claim(self, reasons: list[str]) -> FederationGuarantee:
        """Claims what the ledger allows."""
        claimed = self.session.guarantee()
        told = tuple(dict.fromkeys((*claimed.reasons, *reasons)))
        protected, notes = claimed.protected and not reasons, (*_NOTES, *claimed.notes)
        return replace(claimed, notes=notes, protected=protected, reasons=told)

    def facts(self) -> dict[str, Any]:
        """Returns how many rounds were released."""
        return {"done": len(self.session.broadcasts())}

    def details(self) -> dict[str, Any]:
        """Returns what the rounds have broadcast, in two numbers each."""
        return {"rounds": [round_of(b) for b in self.session.broadcasts()]}

    # The agents' side -----------------------------------------------------------------------

    def send(self, agent: str, message: Message) -> Receipt:
        """Adds an agent's vector to the open round.

        Args:
            agent: The agent's number on the roster.
            message: The vector, and the number of the trial that the agent will choose from this
                round's broadcast: whatever it sends for the same trial again counts as what it
                sent first, and so does a message that somebody sends again.

        Raises:
            VaultError: If the round was complete, and could not be released.
        """
        vector, number = self.read(message, "send", agent)
        server = self.session
        known = self._sent.get(agent)
        if known is not None and known[0] >= number:
            return Receipt(known[1], self._incarnation)
        t = server.connect(int(agent)).submit(vector)
        if t is not None:
            self._sent[agent] = number, t
        return Receipt(t, self._incarnation)

    def broadcasts(self, after: int) -> list[Broadcast]:
        """Returns the broadcasts released after so many rounds."""
        return self.session.broadcasts()[after:]

    def leave(self, agent: int) -> None:
        """An agent sends nothing more: rounds need not wait for it."""
        self.session.connect(agent).leave()
