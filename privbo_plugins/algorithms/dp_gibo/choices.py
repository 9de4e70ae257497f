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

from privbo_plugins.spaces import Categorical, Space

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


def place(slot: int, space: Space) -> int:
    """Gives the number of the evenly spread point from which a start point takes its numbers.

    With few numeric parameters each start point has its own. With many, hardly any point is near
    a good one, and choices are compared at the same numbers, the middle first.
    """
    return slot if space.d <= FEW else slot // n_arms(space)
