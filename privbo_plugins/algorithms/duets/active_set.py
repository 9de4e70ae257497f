"""The active set X_j: a discretisation that everybody derives from what is public.

It is what passed every test so far, so any point can be asked whether it belongs to it. The
discretisation holds points that are uniform on it: the survivors of a trim are uniform on what is
left. When they have become few they are repeated, and each copy takes a walk that never leaves the
set. The uniform distribution is what such a walk leaves unchanged, in any dimension and for any
number of components, each of which keeps its share.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

import numpy as np
import scipy
from numpy.typing import NDArray

from privbo_plugins.algorithms.duets.domain import Domain
from privbo_plugins.algorithms.duets.posterior import SparsePosterior

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

_WALK = 24
"""Steps of a walk; their length halves and starts anew every six."""

_NEIGHBOURS = 8
"""Survivors are joined to points within three times the distance of the so-manieth nearest."""


@dataclass(frozen=True)
class Test:
    """What a point must pass to stay after one epoch.

    Attributes:
        posterior: Of that epoch.
        threshold: The bar.
        width: beta where a point's own deviation counts (upper bound against the best lower
            bound); None for equation (9), where its mean alone does.
    """

    posterior: SparsePosterior
    threshold: float
    width: float | None = None

    __test__ = False

    def passes(self, inputs: Array) -> Mask:
        """Which of the inputs (n, p) stay."""
        if self.width is None:
            return np.asarray(self.posterior.mean(inputs) >= self.threshold)
        mu, sigma = self.posterior.predict(inputs)
        return np.asarray(mu + self.width * sigma >= self.threshold)


@dataclass(frozen=True)
class ActiveSet:
    """X_j.

    Attributes:
        domain: X_1.
        U: Points of the discretisation, shape (M, D).
        tests: What its points have passed.
        share: Share of the domain that is left, estimated by the survivors of each trim.
        size: How many points the discretisation is refined to.
    """

    domain: Domain
    U: Array
    size: int
    tests: tuple[Test, ...] = field(default=(), repr=False)
    share: float = 1.0

    @classmethod
    def whole(cls, domain: Domain, size: int, seed: int) -> ActiveSet:
        """X_1: the domain."""
        return cls(domain, domain.points(size, seed), size)

    @property
    def inputs(self) -> Array:
        """The discretisation as the kernel sees it, shape (M, p)."""
        return self.domain.inputs(self.U)

    @property
    def digest(self) -> int:
        """A digest by which the server and an agent see whether they hold the same points."""
        rounded = np.round(self.U, 9) + 0.0  # no negative zeros
        return int.from_bytes(hashlib.sha256(rounded.tobytes()).digest()[:6], "big")

    def contains(self, X: Array) -> Mask:
        """Which points (n, D) belong to the set."""
        inside = self.domain.contains(X)
        inputs = self.domain.inputs(X)
        for test in self.tests:
            if not inside.any():
                break
            inside[inside] = test.passes(inputs[inside])
        return inside

    def trimmed(self, test: Test, rng: np.random.Generator) -> ActiveSet:
        """X_{j+1}: what passes a further test, with a discretisation of its own.

        Args:
            test: The test; at least one point of the discretisation passes it.
            rng: The coin for new points, which the server and all agents share.
        """
        kept = test.passes(self.inputs)
        tests, share = (*self.tests, test), self.share * float(kept.mean())
        left = replace(self, U=self.U[kept], tests=tests, share=share)
        if self.domain.complete or len(left.U) >= self.size / 2:
            return left
        more = left._walked(self.size - len(left.U), rng)
        return replace(left, U=np.vstack([left.U, more]))

    def _walked(self, n: int, rng: np.random.Generator) -> Array:
        """Survivors, each as often as any other, after a walk inside the set; shape (n, D)."""
        X = self.U[np.resize(rng.permutation(len(self.U)), n)]
        spread = np.maximum(self.U.std(0), 1e-4)
        for step in range(_WALK):
            width = 1.5 * spread / np.sqrt(X.shape[1]) * 0.5 ** (step % 6)
            to = self.domain.near(X, width, rng)
            X = np.where(self.contains(to)[:, None], to, X)
        return X

    @property
    def components(self) -> int:
        """Number of connected components that the discretisation shows."""
        distinct = np.unique(self.inputs, axis=0)
        n = len(distinct)
        if n <= _NEIGHBOURS:
            return 1
        # Random points on a line leave gaps: their eight nearest may all lie on one side.
        found = scipy.spatial.KDTree(distinct).query(distinct, k=min(4 * _NEIGHBOURS, n))
        distances, neighbours = np.asarray(found[0]), np.asarray(found[1])
        reach = 3.0 * float(np.median(distances[:, _NEIGHBOURS - 1]))
        rows, columns = np.nonzero(distances <= reach)
        pairs = rows, neighbours[rows, columns]
        graph = scipy.sparse.coo_matrix((np.ones(len(rows)), pairs), shape=(n, n))
        return int(scipy.sparse.csgraph.connected_components(graph, directed=False)[0])
