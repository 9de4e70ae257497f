"""What tests must read or reach inside an object, each thing once and by name.

Tests ask through the public interface. What no public name tells stands here, so that whoever
changes the inside of a class finds the one place where tests look into it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from privbo_plugins.algorithms.dp_fts_de import FederationConfig
from privbo_plugins.federation import wire
from privbo_plugins.federation.history import AgentHistory

# A federation's connections ---------------------------------------------------------------------


def read_of_a_stranger(peer: Any) -> None:
    """What a server reads of somebody who has proven nothing, without a thread or a proof."""
    message = wire._receive(peer, wire._HANDSHAKE)
    wire._count(message.get("agent"))
    wire._text(message.get("nonce"))
    wire._same("0" * 64, message.get("proof"))


def read_of_a_server(peer: Any, config: FederationConfig) -> dict[str, Any]:
    """What an agent reads of an answer, which may be so long and no longer."""
    return wire._receive(peer, wire._reply_limit(config))


def read_vector(text: Any) -> np.ndarray:
    return np.asarray(wire._unpacked(text))


def read_invitation(text: str) -> Any:
    """Address, agent and secret, without going there."""
    return wire._invitation_from(text)


class Served:
    """A server's side of one connection, run by the caller instead of a thread.

    Args:
        listener: Whose connection it is.
        peer: What takes the place of a socket.
    """

    def __init__(self, listener: wire.Listener, peer: Any) -> None:
        self._connection = wire._Connection(listener, peer)

    @property
    def agent(self) -> int | None:
        """Who has proven to be there."""
        return self._connection.agent

    def admit(self) -> None:
        self._connection._admit()

    def answer(self, agent: int) -> None:
        """Answers one request of an agent; nobody waits for the end of a round."""
        self._connection.agent = agent
        self._connection.ended.set()
        self._connection._answer()


def close_history(history: AgentHistory) -> None:
    """Lets go of an agent's database."""
    history._run.vault.close()
