"""Coins that another party can replay: the shared randomness of section 3.

Coins choose points, which are public; they never touch a reward. What privatises a reward draws
from the operating system and cannot be replayed by anybody.

All coins come from one key. Where they are to be private, so that agents do not know what others
play, the key must be random and long, e.g. ``secrets.randbits(128)``: from its own coin an agent
could find a small key, and with it everybody's coins, by trying all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]

_POINTS, _INDUCING, _REFINEMENT, _CELLS = 1, 2, 3, 4


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
        """All coins, as the server knows them.

        Args:
            key: The number behind them, >= 0 and of any length. For private coins it must be
                random, of at least 128 bits: ``secrets.randbits(128)``.
            n_agents: N.
        """
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

    def cells(self, epoch: int) -> np.random.Generator:
        """Everybody's coin for the cells of an epoch and who gets which."""
        return np.random.default_rng([self.public, _CELLS, epoch])


def dealt_cells(X: NDArray[np.float64], n: int, rng: np.random.Generator) -> list[IntArray]:
    """Cuts points into n cells of nearly equal size, close together in each, in random order.

    Args:
        X: The points, shape (M, p).
        n: Number of cells; beyond M some hold the same point.
        rng: Who gets which cell, and on which side of a cut an odd one lies.

    Returns:
        Row numbers of each cell's points.

    Example:
        >>> cells = dealt_cells(np.array([[0.0], [9.0], [1.0]]), 3, np.random.default_rng(0))
        >>> sorted(int(cell[0]) for cell in cells)
        [0, 1, 2]
    """
    found: list[IntArray] = []
    todo = [(np.arange(len(X), dtype=np.int64), n)]
    while todo:
        members, k = todo.pop()
        if k == 1 or len(members) == 1:
            found += [members] * k
            continue
        first = (k + int(rng.integers(2))) // 2
        widest = int(np.argmax(np.ptp(X[members], axis=0)))
        order = members[np.argsort(X[members, widest], kind="stable")]
        cut = min(max(round(len(members) * first / k), 1), len(members) - 1)
        todo += [(order[:cut], first), (order[cut:], k - first)]
    return [found[i] for i in rng.permutation(n)]
