"""The points that can be evaluated: finitely many arms, or a box.

Algorithms see *inputs* ``z``: the number of an arm, shape (1,), or a point's embedding, shape
(p,). Hosts see points ``x`` of the unit cube, shape (D,).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.ldp_gp_ucb.config import UCBConfig
from privbo_plugins.algorithms.search import Score, argmax, maximiser, place
from privbo_plugins.errors import SpaceChangedError
from privbo_plugins.models.kernels import Kernel, kernel_on_cube
from privbo_plugins.models.reward_posterior import (
    ArmsPosterior,
    FeaturePosterior,
    MixedPosterior,
    RewardPosterior,
)
from privbo_plugins.spaces import Space

Array = NDArray[np.float64]

_MOST_ARMS = 400
"""A finite space with at most so many points is treated as arms."""


class Arms:
    """Finitely many points.

    Args:
        X: The points in the unit cube, shape (N, D).
        K: Their covariance, shape (N, N).
    """

    def __init__(self, X: Array, K: Array) -> None:
        self.X, self.K = X, K
        self._numbers = {place(x): i for i, x in enumerate(X)}
        self._all = np.arange(len(X), dtype=float)[:, None]

    def inputs(self, X: Array) -> Array:
        """Numbers of the arms, shape (n, 1)."""
        return np.array([float(self._numbers[place(x)]) for x in X]).reshape(-1, 1)

    def k(self, A: Array, B: Array) -> Array:
        """Entries of K."""
        return self.K[A[:, 0].astype(np.int64)[:, None], B[:, 0].astype(np.int64)]

    def prior(self, Z: Array) -> Array:
        """The diagonal of K."""
        arms = Z[:, 0].astype(np.int64)
        return np.asarray(self.K[arms, arms])

    def posterior(self, lam: float, *, doubtful: bool = False) -> RewardPosterior:
        """The exact one, or one that finds out how far K can be believed.

        Where that is doubtful, a mixture of K, of arms that have nothing to do with each other,
        and of their middle.
        """
        if not doubtful:
            return ArmsPosterior(self.K, lam)
        alone = np.diag(np.diag(self.K))
        models = [ArmsPosterior(K, lam) for K in (self.K, (self.K + alone) / 2, alone)]
        return MixedPosterior(models, lam)

    def best(self, score: Score, near: Array, rng: np.random.Generator) -> Array:
        """The best of all arms."""
        return np.asarray(self.X[argmax(score(self._all), rng)])


class Box:
    """A space with continuous dimensions, or too many points to list.

    Args:
        space: The space.
        kernel: Covariance on embedded points.
    """

    def __init__(self, space: Space, kernel: Kernel) -> None:
        self._space, self._kernel = space, kernel

    def inputs(self, X: Array) -> Array:
        """Embedded points."""
        return self._space.embed(X)

    def k(self, A: Array, B: Array) -> Array:
        """The kernel."""
        return self._kernel.k(A, B)

    def prior(self, Z: Array) -> Array:
        """One: the kernels depend on distances only."""
        return np.ones(len(Z))

    def posterior(self, lam: float, *, doubtful: bool = False) -> RewardPosterior:
        """One over features that grow with the data, however doubtful the kernel is.

        Points that have nothing to do with each other say nothing of a box.
        """
        return FeaturePosterior(self.k, lam)

    def best(self, score: Score, near: Array, rng: np.random.Generator) -> Array:
        """Uniform candidates and earlier points, then search around the best of them."""
        return maximiser(self._space, lambda X: score(self.inputs(X)), near, rng)


def make_domain(config: UCBConfig, space: Space) -> Arms | Box:
    """The arms or the box that settings and space describe.

    Raises:
        SpaceChangedError: If ``kernel_matrix`` or ``features`` do not fit the space.
    """
    matrix: Any = config.kernel_matrix
    features: Any = config.features
    grid = space.grid(_MOST_ARMS if matrix is None and features is None else 10**6)
    if matrix is None and features is not None:
        kernel = kernel_on_cube(config.kernel, config.lengthscale, features.shape[1])
        matrix = kernel.k(features, features)
    if matrix is not None:
        if grid is None or len(space) != 1 or len(grid) != len(matrix):
            raise SpaceChangedError(
                f"kernel_matrix= and features= need one integer parameter with {len(matrix)} "
                f"values, one an arm; this space holds {', '.join(space.names)} "
                f"with {'infinitely many' if grid is None else len(grid)} points."
            )
        return Arms(grid, matrix)
    kernel = kernel_on_cube(config.kernel, config.lengthscale, len(space))
    if grid is not None:
        Z = space.embed(grid)
        return Arms(grid, kernel.k(Z, Z))
    return Box(space, kernel)
