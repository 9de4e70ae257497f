"""What agents and server say to each other.

Three messages an epoch: the inducing set (only where coins are private: with shared coins every
agent computes it), one upload an agent, one broadcast. Each knows how many real numbers it holds.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

PROJECTION, REWARDS = "projection", "rewards"
"""What an upload holds: v (and the sums that a fit needs), or the rewards themselves."""


LARGEST = 1e100
"""No reward is larger, so that sums of squares stay finite."""


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
    numbers: tuple[float, ...] = field(repr=False)  # an agent may hold what is not privatised

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
        sigma_max: Largest posterior deviation on X_j, for equation (9); None where every agent
            computes the deviations itself.
        scale: lam and s where they are fitted; after the first epoch c too.
        agents: Whose uploads it holds; the others' points are left out by everybody.
        digest: Of the server's discretisation and coin, which every agent compares with its own.
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
        return {n: list(x) if isinstance(x, tuple) else x for n, x in asdict(self).items()}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Broadcast:
        """Reads the broadcast of :meth:`to_dict`; :meth:`PublicState.hear` checks what it says.

        Raises:
            ValueError: If something is missing.
        """
        names = [field.name for field in fields(cls)]
        if missing := [n for n in names if not isinstance(state, Mapping) or n not in state]:
            raise ValueError(
                f"A broadcast holds {', '.join(names)}; this one lacks {', '.join(missing)}."
            )
        told: dict[str, Any] = {
            n: tuple(state[n]) if isinstance(state[n], list) else state[n] for n in names
        }
        return cls(**told)


@dataclass
class Communication:
    """Real numbers sent so far, both ways.

    A broadcast of m numbers counts m however many agents listen; an upload of m numbers counts m
    for the agent that sends it. Integers and the public settings that every agent starts with are
    not counted: they are no real numbers and do not grow with the horizon.

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

    def to_dict(self) -> dict[str, float]:
        """JSON-ready."""
        return {"up": self.up, "down": self.down, "per_agent": self.per_agent}


def is_whole(value: Any) -> bool:
    """Tells if something is an integer; a truth value is none."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_real(value: Any, largest: float = sys.float_info.max) -> bool:
    """Tells if something is a finite number, and at most so large."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    return number and bool(abs(value) <= largest)


def are_real(values: Any, length: int) -> bool:
    """Tells if something is a tuple or list of so many finite numbers."""
    listed = isinstance(values, tuple | list) and len(values) == length
    return listed and all(map(is_real, values))


def numbers(values: Array) -> tuple[float, ...]:
    """A vector as it is sent."""
    return tuple(np.asarray(values, dtype=float).tolist())
