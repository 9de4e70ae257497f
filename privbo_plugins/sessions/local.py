"""The link of an agent in its server's process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.dp_fts_de.config import FederationConfig
from privbo_plugins.algorithms.dp_fts_de.server import Broadcast
from privbo_plugins.privacy.guarantee import FederationGuarantee

if TYPE_CHECKING:
    from privbo_plugins.federation.phases import Sent
    from privbo_plugins.sessions.rounds import FederatedServer

Array = NDArray[np.float64]

_TURN = 5.0
"""Seconds that an agent waits before it looks after the others of its process again."""


class LocalLink:
    """A link to a server in this process; made by :meth:`FederatedServer.connect`."""

    def __init__(self, server: FederatedServer, agent: int) -> None:
        self._server, self._agent = server, agent

    def __reduce__(self) -> Any:
        return self._server.__reduce__()

    @property
    def agent(self) -> int:
        """The agent's number on the roster, from 0."""
        return self._agent

    @property
    def config(self) -> FederationConfig:
        """The federation's public settings."""
        return self._server.config

    def join(self, space: Mapping[str, Any]) -> None:
        """Agrees on the space that all agents tune.

        Raises:
            SpaceChangedError: If the others tune another one.
        """
        self._server._agree(dict(space))

    def submit(self, message: Array) -> int | None:
        """Sends a vector to the open round and returns its number; None once there is none.

        Raises:
            ValueError: If the vector has another length than ``config.message_length``.
        """
        vector = np.asarray(message, dtype=float)
        masking = self._server._masking_of(self)
        if masking is None:
            return self._server._submit(self._agent, vector)
        return masking.submit(vector)

    def enter(self, keys: Sent) -> Sent | None:
        """Joins the open attempt at a round; see :mod:`privbo_plugins.federation.phases`."""
        return self._server._enter(self._agent, keys)

    def turn(self, asked: Sent) -> Sent:
        """Sends what a phase asks for, and hears how it ended; likewise."""
        told = self._server._turn(self._agent, asked, patience=0.0)
        if not asked["wait"] or not told.get("waiting"):
            return told
        self._server._go_round()
        return self._server._turn(self._agent, {**asked, "sent": None}, patience=_TURN)

    def collect(self, t: int) -> Broadcast | None:
        """Waits for the end of a round; None if the server knows no such round any longer.

        Raises:
            FederationError: If the server cannot release it.
        """
        masking = self._server._masking_of(self)
        if masking is not None:
            masking.run(t)
        found = self._server._collect(t)
        return found if isinstance(found, Broadcast) else None

    def broadcasts(self) -> list[Broadcast]:
        """Everything released so far."""
        return self._server.broadcasts()

    def leave(self) -> None:
        """Says that this agent sends nothing more, so that rounds need not wait for it."""
        self._server._leave(self._agent)

    def guarantee(self) -> FederationGuarantee:
        """What may be claimed for the broadcasts."""
        return self._server.guarantee()
