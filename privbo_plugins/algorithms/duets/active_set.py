"""The active set X_j: a discretisation that everybody derives from what is public.

It is what passed every test so far, so any point can be asked whether it belongs to it. The
discretisation holds points that are uniform on it: the survivors of a trim are uniform on what is
left, and when they have become few, new ones join them.

* Where what is left fills the boxes around its components well enough, points of the boxes are
  drawn and rejected: exactly uniform.
* Elsewhere (a thin shell, a ball in many dimensions) survivors are repeated and each takes a walk
  that never leaves the set. The uniform distribution is what such a walk leaves unchanged, in any
  dimension and for any number of components, each of which keeps its share.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np
import scipy
from numpy.typing import NDArray

from privbo_plugins.algorithms.duets.domain import Domain
from privbo_plugins.algorithms.duets.posterior import SparsePosterior

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
IntArray = NDArray[np.int64]

_FILLED = 0.05
"""Share of a box's points that must belong to the set for rejection."""

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
        left = ActiveSet(
            self.domain,
            self.U[kept],
            self.size,
            (*self.tests, test),
            self.share * float(kept.mean()),
        )
        if self.domain.complete or len(left.U) >= self.size / 2:
            return left
        return left.refined(rng)

    def refined(self, rng: np.random.Generator) -> ActiveSet:
        """The same set with about ``size`` points."""
        wanted = self.size - len(self.U)
        boxes = [self.domain.cut(*self._box(group)) for group in self.components()]
        found = self._from_boxes(boxes, self.size, rng)
        if len(found) >= _FILLED * self.size:
            while len(found) < wanted:
                found = np.vstack([found, self._from_boxes(boxes, self.size, rng)])
            more = found[:wanted]
        else:
            more = self._walked(wanted, rng)
        return ActiveSet(self.domain, np.vstack([self.U, more]), self.size, self.tests, self.share)

    def components(self) -> list[Array]:
        """The discretisation's points by connected component, the largest first."""
        labels = _labels(self.inputs)
        groups = [self.U[labels == label] for label in range(int(labels.max()) + 1)]
        return sorted(groups, key=len, reverse=True)

    def _box(self, group: Array) -> tuple[Array, Array]:
        """Bounding box of a component, wider by the distance of its neighbouring points."""
        lower, upper = group.min(0), group.max(0)
        margin = (upper - lower) / max(len(group) ** (1 / group.shape[1]), 1.0)
        floor = 0.5 / max(len(self.U), 2)
        return lower - np.maximum(margin, floor), upper + np.maximum(margin, floor)

    def _from_boxes(
        self, boxes: list[tuple[Array, Array]], n: int, rng: np.random.Generator
    ) -> Array:
        """Those of n uniform points of the boxes' union that belong to the set."""
        volumes = np.array([np.prod(upper - lower) for lower, upper in boxes])
        counts = rng.multinomial(n, volumes / volumes.sum())
        drawn = [
            self.domain.box(lower, upper, int(count), rng)
            for (lower, upper), count in zip(boxes, counts, strict=True)
        ]
        X = rng.permutation(np.vstack(drawn))  # so that any part of them is uniform too
        # A point in several boxes is drawn for each of them.
        within = sum(((X >= lower) & (X <= upper)).all(1).astype(int) for lower, upper in boxes)
        once = rng.random(len(X)) * np.maximum(within, 1) < 1.0
        return X[once & self.contains(X)]

    def _walked(self, n: int, rng: np.random.Generator) -> Array:
        """Survivors, repeated, after a walk inside the set; shape (n, D)."""
        X = self.U[rng.integers(len(self.U), size=n)]
        spread = np.maximum(self.U.std(0), 1e-4)
        for step in range(_WALK):
            width = 1.5 * spread / np.sqrt(X.shape[1]) * 0.5 ** (step % 6)
            to = self.domain.near(X, width, rng)
            X = np.where(self.contains(to)[:, None], to, X)
        return X


def _labels(inputs: Array) -> IntArray:
    """Which component each point belongs to: near ones are joined to their neighbours."""
    distinct, place = np.unique(inputs, axis=0, return_inverse=True)
    n = len(distinct)
    if n <= _NEIGHBOURS:
        return np.zeros(len(inputs), dtype=np.int64)
    # Random points on a line leave gaps: their eight nearest may all lie on one side.
    found = scipy.spatial.KDTree(distinct).query(distinct, k=min(4 * _NEIGHBOURS, n))
    distances, neighbours = np.asarray(found[0]), np.asarray(found[1])
    reach = 3.0 * float(np.median(distances[:, _NEIGHBOURS - 1]))
    rows, columns = np.nonzero(distances <= reach)
    graph = scipy.sparse.coo_matrix(
        (np.ones(len(rows)), (rows, neighbours[rows, columns])), shape=(n, n)
    )
    labels = np.asarray(
        scipy.sparse.csgraph.connected_components(graph, directed=False)[1], dtype=np.int64
    )
    return labels[place.reshape(-1)]
