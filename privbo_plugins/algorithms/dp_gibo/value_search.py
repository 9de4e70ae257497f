"""Search by released values: for few parameters, where values are released precisely.

With less precise values there is descent, and all values together name a point that its end is
compared with.

Notation:

    ======  =============================================================  ========
    symbol  meaning                                                        shape
    ======  =============================================================  ========
    f, s    posterior mean and standard deviation of the exact mean, in    (m,)
            the direction to minimise; a Gaussian process that knows the
            noise (:class:`~privbo_plugins.models.smoothing.Smoother`)
    ======  =============================================================  ========

Descent by gradients is blind to what its length-scale averages over, and a plateau has no slope.
Points chosen by the values before them see both, but learn from one number a trial: they need it
with little noise. The next point has the least f - s, so that what is known badly is looked at;
what is recommended is the evaluated point with the least f + s / 2. The largest expected
improvement instead did worse where noise matters (n mu = 900), and as well elsewhere. With
points out, s counts for more.

Everything here reads releases, points and the public seed, so it costs nothing, and every process
proposes the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.protocols import Comparison
from privbo_plugins.algorithms.values import SURE
from privbo_plugins.models.estimates import Estimator, Told
from privbo_plugins.models.smoothing import Smoother
from privbo_plugins.spaces import Space

Array = NDArray[np.float64]

_ANYWHERE = 200
"""Candidates that are uniform."""

_NEAR = 80
"""Candidates around the best points, for each of the distances."""

_DISTANCES = (0.3, 0.1, 0.03)
"""Distances of these from a best point, in length-scales."""

_OTHER = 0.2
"""Chance that a candidate near a best point takes another choice, a categorical parameter."""

_BEST = 5
"""Evaluated points that candidates lie around."""

_HOPE = 1.0
"""Standard deviations by which the next point may be better than expected."""

_HOPE_OF_CHOICES = 2.0
"""Standard deviations where there are choices: a wrong choice is not a near one."""

_MORE_HOPE = 0.5
"""How much more of it for each point that is out: what they will tell is only guessed. Without
it, eight points at once lay together, and 24 trials ended three times as far from the best."""

_CAUTION = 0.5
"""Standard deviations that a recommended point pays for: the least mean is a lucky one."""


class ValueSearch:
    """Chooses the next point and the best one from released values.

    Args:
        space: The search space.
        model: What the values say of the exact means.
        seed: Drives candidates.
        maximize: Whether large values are good.
    """

    def __init__(self, space: Space, model: Estimator, *, seed: int, maximize: bool) -> None:
        self._space, self._model, self._seed = space, model, seed
        self._sign = -1.0 if maximize else 1.0
        self._hope = _HOPE if space.numeric.all() else _HOPE_OF_CHOICES

    def next(
        self, slot: int, told: Sequence[Told], out: Sequence[Array] = (),
        failed: Sequence[Array] = (),
    ) -> Array:  # fmt: skip
        """The candidate with the least f - s, or less certain where points are out, shape (D,).

        Args:
            slot: Whose point; another slot draws other candidates.
            told: (point, value) of all releases so far, at least one.
            out: Points that are being evaluated: they count as told what is expected there.
            failed: Points whose evaluation failed: they count as told the worst value so far.
        """
        smoother = self._model.smoother(told)
        X = np.array([x for x, _ in told])
        if len(out) or len(failed):
            believed = self._believed(smoother, told, out, failed)
            smoother = self._model.smoother(told, believed)
            X = np.array([*X, *(x for x, _ in believed)])
        f, _ = self._posterior(smoother, X)
        rng = np.random.default_rng([self._seed, slot, len(told)])
        nearest = X[np.argsort(f, kind="stable")[:_BEST]]
        C = self._candidates(nearest, smoother.lengthscale, rng)
        f, s = self._posterior(smoother, C)
        hope = self._hope * (1.0 + _MORE_HOPE * len(out))
        return np.asarray(C[np.argmin(f - hope * s)])

    def best(
        self, told: Sequence[Told], among: Sequence[Sequence[float]] | None = None
    ) -> list[float]:
        """The point to recommend: of told, at least one (point, value), or of these points."""
        points = [x for x, _ in told] if among is None else among
        f, s = self._posterior(self._model.smoother(told), np.array(points))
        return list(points[int(np.argmin(f + _CAUTION * s))])

    def better(self, end: Sequence[float], told: Sequence[Told]) -> list[float]:
        """The end of descent or an evaluated point, whichever has the least posterior mean."""
        X = np.array([end, *(x for x, _ in told)])
        f, _ = self._posterior(self._model.smoother(told), X)
        return list(map(float, X[int(np.argmin(f))]))

    def compared(self, x: Array, first: Array, told: Sequence[Told]) -> Comparison:
        """Compares a point with the incumbent by the posterior of all released values.

        Args:
            x: The point, shape (D,).
            first: The incumbent, likewise.
            told: (point, value) of all releases so far, at least one.
        """
        smoother = self._model.smoother(told)
        difference, sd = smoother.difference(*self._space.embed(np.array([x, first])))
        lead, sd = -self._sign * difference * self._model.width, sd * self._model.width
        return Comparison(first.tolist(), lead, sd, lead > SURE * sd)

    def _posterior(self, smoother: Smoother, X: Array) -> tuple[Array, Array]:
        mean, sd = smoother.posterior(self._space.embed(X))
        return self._sign * mean, sd

    def _believed(
        self, smoother: Smoother, told: Sequence[Told], out: Sequence[Array],
        failed: Sequence[Array],
    ) -> list[Told]:  # fmt: skip
        """Returns (point, value) for pending and failed points, in place of releases."""
        expected = self._model.values(smoother, np.array(out)) if len(out) else ()
        worst = self._sign * max(self._sign * value for _, value in told)
        return [*zip(out, expected, strict=True), *((x, worst) for x in failed)]

    def _candidates(self, around: Array, length: float, rng: np.random.Generator) -> Array:
        """Points as the host will evaluate them, shape (m, D)."""
        C = [self._space.uniform(_ANYWHERE, rng)]
        for distance in _DISTANCES:
            centres = around[rng.integers(len(around), size=_NEAR)]
            near = np.clip(centres + distance * length * rng.standard_normal(centres.shape), 0, 1)
            C.append(
                near if self._space.numeric.all() else self._other_choices(near, centres, rng)
            )
        return self._space.snap_all(np.vstack(C))

    def _other_choices(self, near: Array, centres: Array, rng: np.random.Generator) -> Array:
        """Numbers of the first, and choices of the second but for some, shape (m, D)."""
        anew = self._space.uniform(len(near), rng)
        chosen = np.where(rng.random(centres.shape) < _OTHER, anew, centres)
        return np.where(self._space.numeric, near, chosen)
