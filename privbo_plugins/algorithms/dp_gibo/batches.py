"""The points of each step, and what the losses there tell of the gradient.

Notation:

    =======  ==========================================================  ========
    symbol   meaning                                                     shape
    =======  ==========================================================  ========
    theta    centre of step t                                            (D,)
    c        point at which the gradient is estimated (theta, moved      (d,)
             inwards where a design would leave the cube)
    X        evaluated points of the batch, as the host rounds them      (m, d)
    Y        losses, one row a record                                    (n, m)
    W        (K(X, X) + s2 I)⁻¹ k(X, c)∇ᵀ                                (m, d)
    G        Y W, per-record posterior mean gradients                    (n, d)
    D, d     all and numeric coordinates
    =======  ==========================================================  ========

Points are functions of releases and the public seed, so every process proposes the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.dp_gibo import design
from privbo_plugins.algorithms.dp_gibo.config import GIBOConfig
from privbo_plugins.algorithms.dp_gibo.plan import Plan, lengthscales
from privbo_plugins.models.kernels import Isotropic
from privbo_plugins.privacy.mechanisms import fraction_within, mean_of_clipped_rows
from privbo_plugins.spaces import Space

Array = NDArray[np.float64]


# What is released -------------------------------------------------------------------------------


def mean_of_clipped_gradients(blocks: Iterable[Array], W: Array, B: float, centred: bool) -> Array:
    """Mean of the clipped rows of G, shape (d,); replace-one L2 sensitivity 2B/n.

    Args:
        blocks: Blocks of Y, shape (n_block, m) each.
        W: Weights, shape (m, d).
        B: Clipping norm.
        centred: Whether each record's mean is subtracted before it is regressed.
    """
    return mean_of_clipped_rows(_gradients(blocks, W, centred), B)


def fraction_of_gradients_within(
    blocks: Iterable[Array], W: Array, B: float, centred: bool
) -> Array:
    """Fraction of the rows of G with norm at most B, shape (1,); replace-one sensitivity 1/n."""
    return fraction_within(_gradients(blocks, W, centred), B)


def _gradients(blocks: Iterable[Array], W: Array, centred: bool) -> Iterator[Array]:
    for Y in blocks:
        with np.errstate(all="ignore"):  # no message may depend on a record
            yield (Y - Y.mean(axis=1, keepdims=True) if centred else Y) @ W


# Where losses are asked for ---------------------------------------------------------------------


@dataclass
class GIBOState:
    """Everything that the releases so far determine; public.

    Attributes:
        step: t, the number of gradients applied.
        theta: Centre of step t, (D,); None before the start is chosen.
        path: Centres of all steps so far.
        B: Clipping norm of the next gradient.
        rule: State of the step rule.
        starts: (x, value) of the start points that count.
        step_values: Step (as text) to its released values, in order of release.
        finalists: Points that are compared in the end: the incumbent, theta, and others.
        gains: Released means by which theta is better than the incumbent, and others than theta.
        remembered: (trial, x) of remembered points, oldest first; in a search by values, of those
            that may be compared in the end.
        values: (x, value) of all value releases, in order.
    """

    step: int = 0
    theta: list[float] | None = None
    path: list[list[float]] = field(default_factory=list)
    B: float = 1.0
    rule: list[list[float]] = field(default_factory=list)
    starts: list[tuple[list[float], float]] = field(default_factory=list)
    step_values: dict[str, list[float]] = field(default_factory=dict)
    finalists: list[list[float]] = field(default_factory=list)
    gains: list[float] = field(default_factory=list)
    remembered: list[tuple[str, list[float]]] = field(default_factory=list)
    values: list[tuple[list[float], float]] = field(default_factory=list)

    @property
    def centre(self) -> Array:
        """Theta, shape (D,).

        Raises:
            ValueError: If the start has not been chosen.
        """
        if self.theta is None:
            raise ValueError("The start has not been chosen yet.")
        return np.array(self.theta)


@dataclass(frozen=True)
class Batch:
    """Points of one step.

    Attributes:
        centre: c, shape (d,).
        X: The points, shape (b, d), as the host will evaluate them.
    """

    centre: Array
    X: Array


class Batches:
    """The points of the current step.

    Args:
        config: The settings.
        space: The search space.
        plan: The plan; None before the number of records is known.
        seed: Rotates designs.
        state: What the releases so far determine; read, never changed.
    """

    def __init__(
        self, config: GIBOConfig, space: Space, plan: Plan | None, seed: int, state: GIBOState
    ) -> None:
        self._config, self._space, self._seed, self._state = config, space, seed, state
        self._most = space.d + 1 if plan is None else plan.batch_size
        self._lengthscales = lengthscales(config, space, plan)
        self.kernel = config.make_kernel(self._lengthscales)
        self._made: tuple[int, Batch] | None = None
        self._extra: list[Array] = []

    def current(self) -> Batch:
        """The batch of the current step."""
        if self._made is None or self._made[0] != self._state.step:
            self._made = (self._state.step, self._batch())
            self._extra = []
        return self._made[1]

    def point(self, slot: int) -> Array:
        """Numeric coordinates of a slot, shape (d,); beyond the batch, of an extra point."""
        batch = self.current()
        while len(batch.X) + len(self._extra) <= slot:
            self._extra.append(self._extra_point(batch))
        return np.asarray([*batch.X, *self._extra][slot])

    def _batch(self) -> Batch:
        space, s2 = self._space, self._config.noise_ratio
        theta = self._state.centre[space.numeric]
        old = self.remembered(self._state.remembered)
        b = self._size(theta, old)
        offsets = self._offsets(b)
        symmetric = isinstance(self.kernel, Isotropic) and b in (space.d + 1, 2 * space.d)
        closed = symmetric and len(old) == 0  # where this design is known to be best
        if closed and not self._config.as_published:
            centre = design.inward_centre(theta, offsets)
            return Batch(centre, self._snapped(centre + offsets))
        X = theta + offsets
        if not (closed and X.min() >= 0 and X.max() <= 1):
            X = design.optimise_batch(self.kernel, X, old, theta, s2)
        return Batch(theta, self._snapped(X))

    def _size(self, theta: Array, old: Array) -> int:
        """The plan's b, or with a tolerance and memory the fewest points that reach it."""
        if self._config.tolerance is None or len(old) == 0:
            return self._most
        fewest = design.fewest_points(
            self.kernel, old, theta, self._config.noise_ratio,
            tolerance=self._config.tolerance, most=self._most - 1, offsets=self._offsets,
        )  # fmt: skip
        return fewest or self._most

    def _offsets(self, b: int) -> Array:
        """Structured design around the origin, shape (b, d), rotated anew in each step."""
        d, rng = self._space.d, np.random.default_rng([self._seed, self._state.step])
        if isinstance(self.kernel, Isotropic):
            symmetric = b if b in (d + 1, 2 * d) else d + 1
            r = design.best_radius(type(self.kernel), d, symmetric, self._config.noise_ratio)
            scales = self._lengthscales
        else:
            r, scales = 0.1, np.ones(d)
        return np.asarray(r * scales * design.structured_directions(d, b, rng))

    def _extra_point(self, batch: Batch) -> Array:
        """The next most informative point for the same centre, given all that is out."""
        if self._space.d == 0:
            return np.asarray(batch.X[0])
        out = np.vstack([batch.X, *(e[None] for e in self._extra)])
        rng = np.random.default_rng([self._seed, self._state.step, len(out)])
        radius, d = 0.37 * self._lengthscales, self._space.d
        directions = radius * design.structured_directions(d, d + 1, rng)
        point = design.next_probe(
            self.kernel, out, batch.centre, self._config.noise_ratio, directions
        )
        return np.asarray(self._snapped(point[None])[0])

    def _snapped(self, X: Array) -> Array:
        """Points as the host will evaluate them, numeric coordinates only."""
        space = self._space
        if not space.resolution.any() and space.d == len(space):
            return np.asarray(np.clip(X, 0.0, 1.0))
        full = np.repeat(self._state.centre[None], len(X), axis=0)
        full[:, space.numeric] = X
        return np.array([space.snap(x)[space.numeric] for x in full])

    def remembered(self, points: Sequence[tuple[str, list[float]]]) -> Array:
        """Numeric coordinates of remembered points, shape (m, d)."""
        found = [np.asarray(x)[self._space.numeric] for _, x in points]
        return np.array(found) if found else np.empty((0, self._space.d))

    def centre_of(self, X: Array) -> tuple[Array, dict[str, float]]:
        """c, with coordinates that the host held fixed for the whole batch put where they were."""
        batch = self.current()
        held = (np.ptp(X, axis=0) == 0) & (np.ptp(batch.X, axis=0) > 0)
        c = np.where(held, X[0], batch.centre)
        indices = np.flatnonzero(self._space.numeric)
        return c, {str(indices[j]): float(X[0, j]) for j in np.flatnonzero(held)}

    def trimmed(self, points: list[Any]) -> list[tuple[str, list[float]]]:
        """Keeps as many of the last points as are remembered."""
        memory = self._config.memory
        keep = points if memory < 0 else points[-memory:]
        return [(trial, list(x)) for trial, x in keep] if memory else []
