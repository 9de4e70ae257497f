"""Coins that others can replay: the shared randomness of section 3.

Coins choose points, which are public; they never touch a reward. What privatises a reward draws
from the operating system and cannot be replayed by anybody.

All coins come from one key, in one of two ways:

* *Private* coins by HMAC-SHA256, from the key to the numbers of agents, and from an agent's number
  to each of its draws. An agent that knows some of them, and any draws, cannot work out
  another. The key must be random and long, e.g. ``secrets.randbits(128)``: a small one is found
  by trying all.
* *Shared* coins by numpy's SeedSequence, which is no secret: it can be inverted word by word, so
  that one agent's number gives all others'.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]

_POINTS, _INDUCING, _REFINEMENT, _CELLS = 1, 2, 3, 4


@dataclass(frozen=True)
class Coins:
    """The coins that the server or one agent knows.

    Attributes:
        public: The number behind everybody's coin, >= 0.
        own: The numbers behind agents' coins, by agent.
        secret: Whether they were derived so that they can be kept from each other.

    Example:
        >>> server = Coins.tossed(7, n_agents=3)
        >>> server.draw(2, 1, 0, size=100) == server.known_to(2).draw(2, 1, 0, size=100)
        True
    """

    public: int
    own: Mapping[int, int] = field(repr=False)
    secret: bool = False

    @classmethod
    def tossed(cls, key: int, n_agents: int) -> Coins:
        """All private coins, as the server knows them.

        Args:
            key: The number behind them, >= 0 and of any length. It must be random, of at least
                128 bits: ``secrets.randbits(128)``.
            n_agents: N.

        Raises:
            ValueError: If the key is no integer >= 0.
        """
        if not isinstance(key, int | np.integer) or key < 0:
            raise ValueError("The key behind coins is an integer >= 0: secrets.randbits(128).")
        own = {agent: _derived(int(key), "agent", agent) for agent in range(n_agents)}
        return cls(_derived(int(key), "public"), own, secret=True)

    @classmethod
    def shared(cls, key: int, n_agents: int) -> Coins:
        """Coins that everybody may know; the arguments are those of :meth:`tossed`."""
        numbers = np.random.SeedSequence(key).generate_state(n_agents + 1, np.uint64).tolist()
        return cls(numbers[0], dict(enumerate(numbers[1:])))

    def known_to(self, agent: int) -> Coins:
        """Returns the private coins that an agent knows: its own and everybody's.

        Raises:
            ValueError: If each of them gives the others.
        """
        if not self.secret:
            raise ValueError(
                "Each of these coins gives the others, so no agent can be given one alone: toss "
                "private ones with Coins.tossed."
            )
        return Coins(self.public, {agent: self.own[agent]}, secret=True)

    def draw(self, agent: int, epoch: int, draw: int, size: int) -> int:
        """One of ``size`` points, uniformly: an agent's draw number ``draw`` of an epoch.

        Raises:
            KeyError: If the agent's coin is not known here.
        """
        own = self.own[agent]
        # Others see some of the points: they must not tell what else the agent will draw.
        seed = _derived(own, "draw", epoch, draw) if self.secret else [own, _POINTS, epoch, draw]
        return int(np.random.default_rng(seed).integers(size))

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


def _derived(key: int, purpose: str, *numbers: int) -> int:
    """A number of 256 bits that tells neither the key nor what it gives for anything else."""
    message = "/".join(("privbo duets coins", purpose, *(str(int(n)) for n in numbers)))
    digest = hashlib.sha256(f"{key:x}".encode()).digest()
    return int.from_bytes(hmac.digest(digest, message.encode(), "sha256"), "big")


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
