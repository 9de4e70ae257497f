"""The links of agents in their server's process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.dp_fts_de.config import FederationConfig
from privbo_plugins.algorithms.dp_fts_de.server import Broadcast
from privbo_plugins.algorithms.dp_fts_de.shares import share_scale
from privbo_plugins.errors import PrivacyError
from privbo_plugins.privacy.guarantee import FederationGuarantee
from privbo_plugins.privacy.source import NoiseSource, ShareSource
from privbo_plugins.sessions.rounds import Rounds

if TYPE_CHECKING:
    from privbo_plugins.federation.phases import Masking, Sent

Array = NDArray[np.float64]

_TURN = 5.0
"""Seconds that an agent waits before it looks after the others of its process again."""


class LocalAgents:
    """The agents of a server's own process, and their parts in rounds whose sum alone is seen.

    Args:
        rounds: The server's.
        noise: Test injection only.

    Raises:
        ValueError: If agents add shares of noise, and this source draws none.
    """

    def __init__(self, rounds: Rounds, noise: NoiseSource | None) -> None:
        self.rounds = rounds
        self.masking: dict[int, Masking] = {}
        self._shares: ShareSource | None = None
        if rounds.config.aggregated:
            share_scale(rounds.config)
            if noise is not None and not isinstance(noise, ShareSource):
                raise ValueError(
                    "noise= draws no shares: give it a method discrete_gaussian(d, scale)."
                )
            self._shares = noise

    def masking_of(self, link: LocalLink) -> Masking | None:
        """An agent's part, of which there is one; None where the server sees vectors."""
        config = self.rounds.config
        if not config.aggregated:
            return None
        from privbo_plugins.federation.phases import Masking  # with libraries of an extra

        with self.rounds.lock:
            if link.agent not in self.masking:
                self.masking[link.agent] = Masking(link, config, link.agent, self._shares)
            return self.masking[link.agent]

    def go_round(self) -> None:
        """Lets every agent do what it can without waiting for others."""
        while any([one.step() for one in list(self.masking.values())]):
            pass


class LocalLink:
    """A link to a server in this process; made by :meth:`FederatedServer.connect`."""

    def __init__(self, agents: LocalAgents, agent: int) -> None:
        self._agents, self._rounds, self.agent = agents, agents.rounds, agent
        self.config: FederationConfig = agents.rounds.config

    def __reduce__(self) -> Any:
        raise PrivacyError(
            "A link to a federation's server in this process cannot be pickled. Give other "
            "processes an invitation (server.listen(), server.invitation(agent))."
        )

    def join(self, space: Mapping[str, Any]) -> None:
        """Agrees on the space that all agents tune.

        Raises:
            SpaceChangedError: If the others tune another one.
        """
        self._rounds.agree(dict(space))

    def submit(self, message: Array) -> int | None:
        """Sends a vector to the open round and returns its number; None once there is none.

        Raises:
            ValueError: If the vector has another length than ``config.message_length``.
        """
        vector = np.asarray(message, dtype=float)
        masking = self._agents.masking_of(self)
        if masking is None:
            return self._rounds.submit(self.agent, vector)
        return masking.submit(vector)

    def enter(self, keys: Sent) -> Sent | None:
        """Joins the open attempt at a round; see :mod:`privbo_plugins.federation.phases`."""
        return self._rounds.enter(self.agent, keys)

    def turn(self, asked: Sent) -> Sent:
        """Sends what a phase asks for, and hears how it ended; likewise."""
        told = self._rounds.turn(self.agent, asked, patience=0.0)
        if not asked["wait"] or not told.get("waiting"):
            return told
        self._agents.go_round()
        return self._rounds.turn(self.agent, {**asked, "sent": None}, patience=_TURN)

    def collect(self, t: int) -> Broadcast | None:
        """Waits for the end of a round; None if the server knows no such round any longer.

        Raises:
            FederationError: If the server cannot release it.
        """
        masking = self._agents.masking_of(self)
        if masking is not None:
            masking.run(t)
        found = self._rounds.collect(t)
        return found if isinstance(found, Broadcast) else None

    def broadcasts(self) -> list[Broadcast]:
        """Lists everything released so far."""
        return self._rounds.broadcasts()

    def leave(self) -> None:
        """Says that this agent sends nothing more, so that rounds need not wait for it."""
        self._rounds.leave(self.agent)

    def guarantee(self) -> FederationGuarantee:
        """Makes the claim for the broadcasts."""
        return self._rounds.guarantee()
