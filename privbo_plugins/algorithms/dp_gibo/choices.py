"""Choices are selected by released values: how many points a plan spends on it, and where.

Notation:

    ======  ================================================================
    symbol  meaning
    ======  ================================================================
    d       numeric coordinates
    A       combinations of choices (arms)
    K       start points, spread evenly, before anything is known
    S       points chosen by the values before them, choices included
    N       planned trials
    ======  ================================================================

Descent cannot move a choice, so its first choice decides the run. With few numeric parameters
and little noise, all points but K are chosen by values (:mod:`.value_search`), choices and numbers
together. With many, S of them choose where descent begins, for half of the budget. With a noise
that hides the difference between choices, the best of the starts is what there is.

Everything here comes from public quantities.
"""

from __future__ import annotations

import math

import numpy as np
import scipy
from numpy.typing import NDArray

from privbo_plugins.spaces import Categorical, Space

Array = NDArray[np.float64]

FEW = 4
"""Numeric parameters up to which all points are chosen by values."""

PRECISE = 0.1
"""Largest noise of a value, in widths of the range of values, for choices to be selected."""

HALF = 0.5
"""Share of mu² for values where descent follows."""

_PER_ARM = 4
"""Start points a combination, as far as a third of the trials goes."""

_MOST_SHARE = 1 / 3


def n_arms(space: Space) -> int:
    """A; 1 without choices."""
    return math.prod(len(d.choices) for d in space.values() if isinstance(d, Categorical))


def starts(space: Space, usual: int, trials: int) -> int:
    """K: the usual number, more for many combinations, or half of it if nothing is numeric.

    Args:
        space: With choices.
        usual: K of a space without them.
        trials: N.
    """
    if space.d == 0:
        return max(1, usual // 2)
    return max(usual, min(_PER_ARM * n_arms(space), int(_MOST_SHARE * trials)))


def cover(slot: int, space: Space) -> tuple[int, ...]:
    """The choices of the first A start points, one combination each; the K starts repeat them.

    Args:
        slot: Number of the start point.
        space: With choices.

    Returns:
        One index a categorical parameter, in the order of the space.

    Example:
        >>> both = Space({"a": Categorical(("x", "y")), "b": Categorical((1, 2, 3))})
        >>> sorted({cover(slot, both) for slot in range(6)})
        [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    """
    rest, found = slot % n_arms(space), []
    for dimension in space.values():
        if isinstance(dimension, Categorical):
            rest, index = divmod(rest, len(dimension.choices))
            found.append(index)
    return tuple(found)


def arm_of(x: Array, space: Space) -> int:
    """The slot of :func:`cover` whose choices are those of a point (D,)."""
    sizes = [len(d.choices) for d in space.values() if isinstance(d, Categorical)]
    places = np.cumprod([1, *sizes[:-1]]) if sizes else np.empty(0)
    return int(x[~space.numeric] @ places)


class StartPoints:
    """Start points, spread evenly over the cube.

    Args:
        space: The search space.
        seed: Scrambles the sequence that they are from.
        centred: Whether the first is the middle, where there is no incumbent.
        selects: Whether they try every choice, for released values to select among them. With few
            numeric parameters each of them then has numbers of its own. With many, hardly any
            point is near a good one, and choices are compared at the same numbers.
        incumbent: The first of them, shape (D,); None for the middle.
    """

    def __init__(
        self, space: Space, seed: int, *, centred: bool, selects: bool,
        incumbent: Array | None = None,
    ) -> None:  # fmt: skip
        self._space, self._seed, self._selects = space, seed, selects
        middle = np.where(space.numeric, 0.5, 0.0) if centred else None
        self._first = middle if incumbent is None else incumbent
        self._sequence: Array = np.empty((0, len(space)))
        self._arm = 0 if incumbent is None else arm_of(incumbent, space)

    def at(self, slot: int) -> Array:
        """The point of a slot, shape (D,)."""
        space = self._space
        if not self._selects:
            return self._even(slot)
        combinations = n_arms(space)
        x = self._even(slot if space.d <= FEW else slot // combinations)
        arm = slot % combinations
        x[~space.numeric] = cover({0: self._arm, self._arm: 0}.get(arm, arm), space)
        return x

    def _even(self, index: int) -> Array:
        """The incumbent or the middle (unless a random start is asked for), then Sobol's."""
        numeric = self._space.numeric
        if index == 0 and self._first is not None:
            return self._first.copy()
        if index >= len(self._sequence):
            m = max(4, math.ceil(math.log2(index + 1)))
            rng = np.random.default_rng(self._seed)
            sobol = scipy.stats.qmc.Sobol(len(self._space), scramble=True, rng=rng)
            self._sequence = sobol.random_base2(m)
        u = self._sequence[index]
        sizes = [len(getattr(dim, "choices", ())) or 1 for dim in self._space.values()]
        return np.asarray(np.where(numeric, u, np.floor(u * np.array(sizes))))
