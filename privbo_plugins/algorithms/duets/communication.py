"""What is said between agents and server, counted in real numbers both ways.

A broadcast of m numbers counts m however many agents listen; an upload of m numbers counts m for
the agent that sends it. Integers (epochs, agents' numbers) and the public settings that every
agent starts with are not counted: they are no real numbers and do not grow with the horizon.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from privbo_plugins.algorithms.duets.messages import is_whole


@dataclass
class Communication:
    """Real numbers sent so far.

    Attributes:
        n_agents: N.
        up: Numbers that all agents together have sent to the server.
        down: Numbers that the server has broadcast, each counted once.

    Example:
        >>> sent = Communication(n_agents=10)
        >>> sent.up += 10 * 7  # every agent uploads seven numbers
        >>> sent.down += 8
        >>> sent.per_agent
        15.0
    """

    n_agents: int
    up: int = 0
    down: int = 0

    @property
    def per_agent(self) -> float:
        """C = C_up + C_down: uploads averaged over agents plus broadcasts (eq. 2)."""
        return self.up / self.n_agents + self.down

    @property
    def on_the_wire(self) -> int:
        """Numbers that travel if a broadcast is N messages instead of one."""
        return self.up + self.n_agents * self.down

    def to_dict(self) -> dict[str, float]:
        """JSON-ready."""
        return {"up": self.up, "down": self.down, "per_agent": self.per_agent}

    def load(self, state: Mapping[str, float]) -> None:
        """Takes the counts of :meth:`to_dict`.

        Raises:
            ValueError: If they are none.
        """
        counts = state["up"], state["down"]
        if not all(is_whole(count) and count >= 0 for count in counts):
            raise ValueError("The communication of a state is counted in integers >= 0.")
        self.up, self.down = map(int, counts)
