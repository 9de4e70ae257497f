"""Random search: independent uniform points."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.spaces import Space

Array = NDArray[np.float64]


def random_points(space: Space, n_trials: int, rng: np.random.Generator) -> Array:
    """Independent uniform points, as the host will evaluate them.

    Args:
        space: The search space.
        n_trials: Number of points.
        rng: Source of candidates (never of privacy noise).

    Returns:
        Shape (n_trials, D).

    Example:
        >>> from privbo_plugins.spaces import Float
        >>> random_points(Space({"x": Float(0, 1)}), 3, np.random.default_rng(0)).shape
        (3, 1)
    """
    choices = [len(getattr(dim, "choices", ())) or 1 for dim in space.values()]
    u = rng.random((n_trials, len(space)))
    points = np.where(space.numeric, u, np.floor(u * np.array(choices)))
    return np.array([space.snap(x) for x in points])
