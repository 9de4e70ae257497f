"""Sub-regions of the space, who explores which, and how much each counts there.

Notation (Dai et al. 2021, section 3.2 and appendix B):

    ========  =======================================================  ========
    symbol    meaning                                                  shape
    ========  =======================================================  ========
    P         number of sub-regions                                    scalar
    X_p       sub-region p, a box of the cube                          2 × (D,)
    I_n^(p)   1 if agent n explores X_p at the start, else 0           (P, N)
    a_t       inverse temperature at round t                           scalar
    phi       weights, phi_n^(p) ∝ exp(a_t I_n^(p)), rows sum to 1     (P, N)
    ========  =======================================================  ========

Regions and weights depend on the roster alone, never on who takes part: they are public.
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.settings import (
    Count,
    Stored,
    WholeNumber,
    between,
    setting,
    settings,
)
from privbo_plugins.spaces import Categorical, Space

Array = NDArray[np.float64]


_Start = Annotated[float, between(0, 700)]


@settings
class Temperature(Stored):
    """a_t: held for some rounds, then falling linearly to 0, where all agents count alike.

    {settings}

    Raises:
        ValueError: If a number lies outside its range.

    Example:
        >>> Temperature(15.0, 10, 30)(10), Temperature(15.0, 10, 30)(40)
        (15.0, 0.0)
    """

    start: _Start = setting("Its value at first, in [0, 700].", default=15.0, kw_only=False)
    hold: WholeNumber = setting("Rounds for which it is held, >= 0.", default=10, kw_only=False)
    fade: Count = setting("Rounds in which it falls to 0, >= 1.", default=30, kw_only=False)

    def __call__(self, t: int) -> float:
        """a_t for round t = 1, 2, ..."""
        return self.start * min(1.0, max(0.0, 1.0 - (t - self.hold) / self.fade))


class Regions:
    """Boxes of equal volume that tile the numeric coordinates of a space.

    Each prime factor of P cuts the coordinate that has been cut least so far, so P = 4 gives four
    quarters of a square and P = 3 on a line three thirds. Choices are never cut.

    Args:
        space: The space.
        P: Number of regions, >= 1.

    Raises:
        ValueError: If the space has no numeric parameter that varies and P > 1.

    Example:
        >>> from privbo_plugins.spaces import Float
        >>> regions = Regions(Space({"x": Float(0, 1), "y": Float(0, 1)}), 4)
        >>> regions.index(np.array([[0.1, 0.1], [0.9, 0.1]])).tolist()
        [0, 2]
    """

    def __init__(self, space: Space, P: int) -> None:
        numeric = np.flatnonzero(
            [not isinstance(d, Categorical) and d.low < d.high for d in space.values()]
        )
        if P > 1 and not len(numeric):
            raise ValueError(
                f"n_regions={P} needs a numeric parameter to divide: with choices alone use "
                "n_regions=1."
            )
        self.P, self._space = P, space
        self._cuts = np.ones(len(space), dtype=int)
        for factor in _prime_factors(P):
            self._cuts[numeric[np.argmin(self._cuts[numeric])]] *= factor
        places = np.indices(tuple(self._cuts.tolist())).reshape(len(space), -1).T
        self.lower: Array = places / self._cuts
        """Lower corners, shape (P, D)."""
        self.upper: Array = (places + 1) / self._cuts
        """Upper corners, shape (P, D)."""

    def index(self, X: Array) -> NDArray[np.int64]:
        """The region of each point (n, D), shape (n,)."""
        places = np.clip((X * self._cuts).astype(int), 0, self._cuts - 1)
        places[:, ~self._space.numeric] = 0
        return np.asarray(np.ravel_multi_index(tuple(places.T), tuple(self._cuts)))

    def draw(self, p: int | None, n: int, rng: np.random.Generator) -> Array:
        """Uniform points of region p, or of the whole space (None), shape (n, D).

        Points are those that the host will evaluate: one on a coarse grid may lie next to the
        region, where the region holds no grid point.
        """
        if p is None:
            return self._space.uniform(n, rng)
        return self._space.within(self.lower[p], self.upper[p], n, rng)


def _prime_factors(number: int) -> list[int]:
    """Largest first."""
    factors, divisor = [], 2
    while number > 1:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return factors[::-1]


def dealt(agents: NDArray[np.int64], P: int) -> NDArray[np.int64]:
    """The regions that agents explore at the start, round robin; shape of their numbers."""
    return np.asarray(agents % P)


def region_weights(N: int, P: int, a_t: float) -> Array:
    """phi_n^(p), shape (P, N); every row sums to 1.

    Args:
        N: Number of agents on the roster.
        P: Number of regions, at most N: a region that no agent explores would weigh all alike.
        a_t: Inverse temperature.
    """
    explores = dealt(np.arange(N), P)[None, :] == np.arange(P)[:, None]
    tilted = np.exp(a_t * (explores.astype(float) - 1.0))
    return np.asarray(tilted / tilted.sum(1, keepdims=True))


def chance_of_own(t: int, power: int) -> float:
    """p_t = 1 - 1/t^power: how likely an agent relies on itself at its round t = 1, 2, ...

    Args:
        t: The agent's own round.
        power: 1 (section 5), or 2 for federated Thompson sampling's schedule.
    """
    return 1.0 - math.pow(t, -power)
