"""Coins that another party can replay: the shared randomness of section 3.

Coins choose points, which are public; they never touch a reward. What privatises a reward draws
from the operating system and cannot be replayed by anybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]

_POINTS, _INDUCING, _REFINEMENT = 1, 2, 3


@dataclass(frozen=True)
class Coins:
    """The coins that one party knows.

    Attributes:
        public: The number behind everybody's coin, >= 0.
        own: The numbers behind agents' coins, by agent.

    Example:
        >>> server = Coins.tossed(7, n_agents=3)
        >>> server.draw(2, 1, 0, size=100) == server.known_to(2).draw(2, 1, 0, size=100)
        True
    """

    public: int
    own: Mapping[int, int] = field(repr=False)

    @classmethod
    def tossed(cls, key: int, n_agents: int) -> Coins:
        """All coins, as the server knows them, from one number >= 0."""
        numbers = np.random.SeedSequence(key).generate_state(n_agents + 1, np.uint64).tolist()
        return cls(numbers[0], dict(enumerate(numbers[1:])))

    def known_to(self, agent: int) -> Coins:
        """What an agent knows of them if they are private: its own and everybody's."""
        return Coins(self.public, {agent: self.own[agent]})

    def draw(self, agent: int, epoch: int, draw: int, size: int) -> int:
        """One of ``size`` points, uniformly: an agent's draw number ``draw`` of an epoch.

        Raises:
            KeyError: If this party does not know the agent's coin.
        """
        rng = np.random.default_rng([self.own[agent], _POINTS, epoch, draw])
        return int(rng.integers(size))

    def draws(self, agent: int, epoch: int, n: int, size: int) -> IntArray:
        """An agent's first n draws of an epoch, shape (n,)."""
        return np.array([self.draw(agent, epoch, i, size) for i in range(n)], dtype=np.int64)

    def inducing(self, epoch: int) -> np.random.Generator:
        """The coin that chooses the inducing set of an epoch."""
        return np.random.default_rng([self.public, _INDUCING, epoch])

    def refinement(self, epoch: int) -> np.random.Generator:
        """Everybody's coin for new points of the discretisation after an epoch."""
        return np.random.default_rng([self.public, _REFINEMENT, epoch])
