"""What agents and server say to each other.

Three messages an epoch: the inducing set (only where coins are private: with shared coins every
party computes it), one upload an agent, one broadcast. Each knows how many real numbers it holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

PROJECTION, REWARDS = "projection", "rewards"
"""What an upload holds: v (and the sums that a fit needs), or the rewards themselves."""


@dataclass(frozen=True)
class InducingSet:
    """S_j, from the server to all agents.

    Attributes:
        epoch: j.
        points: Shape (m, D).
    """

    epoch: int
    points: tuple[tuple[float, ...], ...]

    @property
    def reals(self) -> int:
        """Numbers in it: m D."""
        return sum(map(len, self.points))


@dataclass(frozen=True)
class Upload:
    """What one agent sends at the end of an epoch.

    Attributes:
        epoch: j.
        agent: n.
        kind: :data:`PROJECTION` or :data:`REWARDS`.
        numbers: v_j^(n) and two sums, or Y_j^(n).
    """

    epoch: int
    agent: int
    kind: str
    numbers: tuple[float, ...]

    @property
    def reals(self) -> int:
        """Numbers in it."""
        return len(self.numbers)


@dataclass(frozen=True)
class Broadcast:
    """What the server tells all agents at the end of an epoch.

    Attributes:
        epoch: j.
        v_bar: Shape (m,).
        sigma_max: Largest posterior deviation on X_j, for equation (9); None where every party
            computes the deviations itself.
        scale: lam and s where they are fitted; after the first epoch c too.
        agents: Whose uploads it holds; the others' points are left out by everybody.
        digest: Of the server's discretisation and coin, which every party compares with its own.
    """

    epoch: int
    v_bar: tuple[float, ...]
    sigma_max: float | None
    scale: tuple[float, ...]
    agents: tuple[int, ...]
    digest: int

    @property
    def reals(self) -> int:
        """Numbers in it; agents and digest are integers."""
        return len(self.v_bar) + len(self.scale) + (self.sigma_max is not None)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "epoch": self.epoch,
            "v_bar": list(self.v_bar),
            "sigma_max": self.sigma_max,
            "scale": list(self.scale),
            "agents": list(self.agents),
            "digest": self.digest,
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Broadcast:
        """The broadcast of :meth:`to_dict`."""
        return cls(
            int(state["epoch"]),
            tuple(map(float, state["v_bar"])),
            None if state["sigma_max"] is None else float(state["sigma_max"]),
            tuple(map(float, state["scale"])),
            tuple(map(int, state["agents"])),
            int(state["digest"]),
        )


def numbers(values: Array) -> tuple[float, ...]:
    """A vector as it is sent."""
    return tuple(np.asarray(values, dtype=float).tolist())
