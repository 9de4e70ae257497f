"""One of N agents (Algorithm 1 of the paper): evaluates its coin's points, sends a projection.

Only the agent learns its rewards. If they are privatised before it does, everything that it sends
is a function of privatised rewards: post-processing.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.duets.messages import (
    LARGEST,
    PROJECTION,
    REWARDS,
    Broadcast,
    InducingSet,
    Upload,
    numbers,
)
from privbo_plugins.algorithms.duets.public_state import PublicState

Array = NDArray[np.float64]


def bounded(reward: float) -> float:
    """A reward whose squares can be added up: larger ones count as the largest."""
    return float(min(max(reward, -LARGEST), LARGEST))


class Agent:
    """An agent.

    Args:
        number: n, in 0 ... N - 1.
        public_state: What it knows besides its rewards; agents of one process may share one.

    Raises:
        ValueError: If there is no such agent.

    Example:
        >>> from privbo_plugins.algorithms.duets import DUETSConfig, FinitePoints, make_agents
        >>> config = DUETSConfig(n_agents=2, first_epoch=1, n_trials=8, lengthscale=0.2)
        >>> domain = FinitePoints(np.linspace(0, 1, 50)[:, None])
        >>> server, agents = make_agents(config, domain, key=0)
        >>> for agent in agents:
        ...     _ = agent.tell(0, float(agent.points[0, 0]))
        ...     _ = server.receive(agent.upload(server.inducing_set()))
        >>> server.close().epoch
        1
    """

    def __init__(self, number: int, public_state: PublicState) -> None:
        if not 0 <= number < public_state.config.n_agents:
            raise ValueError(
                f"Agents are numbered from 0 to {public_state.config.n_agents - 1}, got {number}."
            )
        self.number, self.public_state = number, public_state
        self._rewards: dict[tuple[int, int], float] = {}

    @property
    def points(self) -> Array:
        """The points that it evaluates in the open epoch, shape (T_j, D)."""
        return self.public_state.points(self.number)

    def tell(self, draw: int, reward: float, epoch: int | None = None) -> bool:
        """Keeps one reward (larger is better).

        Args:
            draw: Which of its points was evaluated.
            reward: The reward, privatised if it is to be private.
            epoch: Of which epoch; None is the open one.

        Returns:
            False if it is a duplicate or comes too late: the first report stands.

        Raises:
            ValueError: If it is not finite, or there is no such draw.
        """
        epoch = self.public_state.j if epoch is None else epoch
        if not math.isfinite(reward):
            raise ValueError("A reward must be finite; privatised ones always are.")
        if epoch != self.public_state.j or (epoch, draw) in self._rewards:
            return False
        if not 0 <= draw < self.public_state.T_j:
            raise ValueError(
                f"Epoch {epoch} has {self.public_state.T_j} draws an agent, got {draw}."
            )
        self._rewards[epoch, draw] = bounded(reward)
        return True

    def missing(self) -> list[int]:
        """Draws of the open epoch without a reward."""
        return [
            t
            for t in range(self.public_state.T_j)
            if (self.public_state.j, t) not in self._rewards
        ]

    def upload(self, message: InducingSet | None) -> Upload:
        """Returns its message of an epoch: v_j^(n) (eq. 7), or the rewards if they are fewer.

        Args:
            message: The server's inducing set; None where everybody computes it.

        Raises:
            ValueError: If rewards are missing.
        """
        if self.missing():
            raise ValueError(
                f"Agent {self.number} still waits for {len(self.missing())} of its "
                f"{self.public_state.T_j} rewards of epoch {self.public_state.j}."
            )
        j = self.public_state.j
        Y = np.array([self._rewards[j, t] for t in range(self.public_state.T_j)])
        self.public_state.announce(message)
        Z = self.public_state.inducing.features(self.public_state.domain.inputs(self.points))
        v = Z.T @ Y  # eq. 7
        sums = [] if self.public_state.config.published else [float(Y.sum()), float(Y @ Y)]
        projection = (*numbers(v), *sums)
        replayable = message is None  # then everybody has Z, and can project for this agent
        if replayable and len(Y) < len(projection):
            return Upload(j, self.number, REWARDS, numbers(Y))
        return Upload(j, self.number, PROJECTION, projection)

    def hear(self, broadcast: Broadcast, message: InducingSet | None = None) -> None:
        """Takes the server's broadcast; see :meth:`PublicState.hear`.

        Args:
            broadcast: The server's.
            message: Its inducing set, for an agent that has not uploaded and cannot compute it.

        Raises:
            ValueError: Also if coins are private and the inducing set is missing.
        """
        self.public_state.announce(message)
        self.public_state.hear(broadcast)
