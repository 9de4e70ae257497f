"""An agent's way to its server, in one process or over a network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.dp_fts_de.config import FederationConfig
from privbo_plugins.algorithms.dp_fts_de.server import Broadcast
from privbo_plugins.privacy.guarantee import FederationGuarantee

Array = NDArray[np.float64]

NEEDED = (
    "Agents in other processes need {}: pip install 'privbo-plugins[federation]'. In one process "
    "server.connect(agent) needs nothing."
)
"""Which library is missing, and the extra that brings it."""


class Link(Protocol):
    """An agent's way to its server."""

    @property
    def agent(self) -> int:
        """The agent's number on the roster, from 0."""
        ...

    @property
    def config(self) -> FederationConfig:
        """The federation's public settings."""
        ...

    def join(self, space: Mapping[str, Any]) -> None:
        """Agrees on the space (:meth:`Space.to_dict`) that all agents tune."""
        ...

    def submit(self, message: Array) -> int | None:
        """Sends a vector to the open round and returns its number; None once there is none."""
        ...

    def collect(self, t: int) -> Broadcast | None:
        """Waits for the end of a round; None if the server knows no such round any longer."""
        ...

    def broadcasts(self) -> list[Broadcast]:
        """Everything released so far."""
        ...

    def leave(self) -> None:
        """Says that this agent sends nothing more, so that rounds need not wait for it."""
        ...

    def guarantee(self) -> FederationGuarantee:
        """Makes the claim for the broadcasts."""
        ...


class Alone:
    """The link of an agent that takes part no longer: nothing is sent, nothing comes.

    Args:
        link: The one that it had.
        for_good: Whether it will not be tried again.
    """

    def __init__(self, link: Link, *, for_good: bool = True) -> None:
        self.agent, self.config, self._link = link.agent, link.config, link
        self.for_good = for_good

    def join(self, space: Mapping[str, Any]) -> None:
        """Agrees with any space."""

    def submit(self, message: Array) -> None:
        """Sends nothing."""

    def collect(self, t: int) -> None:
        """Waits for nothing."""

    def broadcasts(self) -> list[Broadcast]:
        """None: they are of another space."""
        return []

    def leave(self) -> None:
        """Does nothing: no round waits for this agent."""

    def guarantee(self) -> FederationGuarantee:
        """Makes the claim for the broadcasts that there were."""
        return self._link.guarantee()
