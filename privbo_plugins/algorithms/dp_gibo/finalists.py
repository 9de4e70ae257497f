"""The end of a run: the incumbent, its end and others that may be better, compared at once.

Notation:

    =======  ==========================================================  ========
    symbol   meaning                                                     shape
    =======  ==========================================================  ========
    theta    end of descent, or the best point by values                 (D,)
    y        losses of a finalist's trial                                (n,)
    B_c      clip of one record's difference of two losses               scalar
    =======  ==========================================================  ========

One release: the mean of (y(incumbent) - y(theta), y(theta) - y(x), ...) for all other finalists
x, clipped to length B_c. The x with the largest gain takes theta's place if that gain lies clearly
above zero. An incumbent is left for it if the sum of both gains does. The middle, where no
incumbent was named, stays if that sum lies clearly below zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.dp_gibo.batches import GIBOState
from privbo_plugins.algorithms.dp_gibo.plan import LAST, Plan
from privbo_plugins.algorithms.dp_gibo.value_search import ValueSearch
from privbo_plugins.algorithms.protocols import Comparison, Query, Release
from privbo_plugins.algorithms.values import SURE
from privbo_plugins.privacy.mechanisms import clip_values, mean_of_clipped_rows
from privbo_plugins.spaces import Space

Array = NDArray[np.float64]

COMPARISON = "comparison"
"""Kind of the release."""

_HARMLESS = 0.01
"""A loss of so many widths of the range would harm little: leaving asks for so much less."""


def mean_of_clipped_differences(
    blocks: Iterable[Array], clipped: Mapping[str, float] | None, sign: float, B: float
) -> Array:
    """Mean of (y_1 - y_2, y_2 - y_3, y_2 - y_4, ...), rows clipped to length B, shape (k - 1,).

    Replace-one L2 sensitivity 2B/n. Each difference is clipped to B before, so that a large one
    takes little from another's weight.

    Args:
        blocks: Blocks of k trials' losses, shape (n_block, k) each.
        clipped: Arguments of :func:`~privbo_plugins.privacy.mechanisms.clip_values`, which comes
            first, so that a loss that is not finite counts as the worst; None where mu = infinity.
        sign: -1 where large values are good.
        B: The most that one record's differences count.
    """
    clean = blocks if clipped is None else (clip_values(Y, **clipped) for Y in blocks)
    return mean_of_clipped_rows((_differences(Y, sign, B) for Y in clean), B)


def _differences(Y: Array, sign: float, B: float) -> Array:
    with np.errstate(all="ignore"):  # no message may depend on a record
        D = sign * (Y[:, 1:2] - np.delete(Y, 1, axis=1))
        D[:, 0] *= -1.0
        return np.clip(D, -B, B)


class Finalists:
    """The points that are compared in the end, and which of them is recommended.

    Args:
        space: The search space.
        value_range: (low, high) that values are clipped to.
        plan: The plan; None before the number of records is known, and then nothing ends.
        state: What the releases so far determine.
        maximize: Whether per-record values are scores to maximise.
    """

    def __init__(
        self, space: Space, value_range: tuple[float, float], plan: Plan | None, state: GIBOState,
        *, maximize: bool,
    ) -> None:  # fmt: skip
        self._space, self._state, self._maximize = space, state, maximize
        self._low, self._high = value_range
        if plan is not None:
            self._plan = plan

    def choose(self, first: Array, search: ValueSearch) -> None:
        """Fixes the points: the incumbent, theta, the best by values.

        Args:
            first: The incumbent, or the middle, shape (D,).
            search: Says which point all released values call best.
        """
        if self._plan.mu_comparison == 0:
            return
        points = [first, self._state.centre]
        if self._plan.n_last == LAST:
            better = search.better(self._state.centre.tolist(), self._state.values)
            points.append(np.array(better))
        if self._plan.n_last == 0:  # a search by values: what was evaluated before
            if np.allclose(points[0], points[1]):  # one trial for both
                del points[0]
            else:
                others = [np.array(x) for _, x in self._state.remembered]
                points += [x for x in others if not any(np.allclose(x, p) for p in points[:2])]
        self._state.finalists = [self._space.snap(x).tolist() for x in points]

    def query(self, trials: Sequence[str], X: Sequence[Array]) -> Query:
        """Asks what theta gains on the first, and the others on it, where the host tried them."""
        points = self._state.finalists
        finalists, left = np.array(points * 2 if len(points) == 1 else points), [*range(len(X))]
        nearest: list[int] = []
        for point in finalists:  # one that was given up is compared as another one
            pool = left or range(len(X))
            nearest.append(min(pool, key=lambda i: float(np.abs(X[i] - point).sum())))
            left = [i for i in left if i != nearest[-1]]
        low, high, B = self._low, self._high, self._plan.comparison_clip
        worst = low if self._maximize else high
        return Query(
            COMPARISON,
            key=COMPARISON,
            statistic=mean_of_clipped_differences,
            trials=tuple(trials[i] for i in nearest),
            settings={
                "clipped": None if math.isinf(B) else {"low": low, "high": high, "worst": worst},
                "sign": -1.0 if self._maximize else 1.0,
                "B": B,
            },
            sensitivity=2.0 * B / self._plan.n_records if math.isfinite(B) else 0.0,
            mu=self._plan.mu_comparison,
            meta={"step": self._state.step, "points": [X[i].tolist() for i in nearest]},
        )

    def observe(self, release: Release, first: Array, *, middle: bool) -> None:
        """Learns the gains, and where they were measured."""
        state = self._state
        state.gains = list(release.values)
        state.finalists = [list(x) for x in release.meta["points"]]
        best = self.best(first, middle=middle)
        if best != 1:
            state.path.append(state.finalists[best])

    def best(self, first: Array, *, middle: bool) -> int:
        """Index of the recommended one: 1 for theta, 0 for the incumbent, or the middle.

        Args:
            first: The incumbent, or the middle, shape (D,).
            middle: Whether it is the middle, which stays only if it is clearly better.
        """
        sd = self._plan.comparison_noise
        best = 1 + int(np.argmax([SURE * sd, *self._state.gains[1:]]))
        gains = self._gains_of(best)
        sure = SURE * sd * math.sqrt(len(gains))
        harmless = _HARMLESS * self._plan.comparison_clip / (self._high - self._low)
        margin = -sure if middle else max(sure - harmless, 0.0)
        return best if math.fsum(gains) > margin or not self._evaluated(first) else 0

    def _gains_of(self, best: int) -> list[float]:
        """The gains whose sum is that of a finalist on the first."""
        gains = self._state.gains
        return [gains[0], *gains[best - 1 : best]] if best > 1 else gains[:1]

    def comparison(self, first: Array, *, middle: bool) -> Comparison | None:
        """The released gain on the incumbent; None if no finalist is the incumbent.

        Args:
            first: The incumbent, or the middle, shape (D,).
            middle: Whether it is the middle.
        """
        if not self._evaluated(first):
            return None
        best = self.best(first, middle=middle)
        gains = self._gains_of(max(best, 1))
        return Comparison(
            self._state.finalists[0], math.fsum(gains),
            self._plan.comparison_noise * math.sqrt(len(gains)), best > 0,
            self._plan.comparison_clip, middle=middle,
        )  # fmt: skip

    def _evaluated(self, first: Array) -> bool:
        """Tells if the first finalist is the incumbent, but for coordinates that the host fixed.

        It is another one where the incumbent was given up, or the host put a trial elsewhere.
        """
        points = np.array(self._state.finalists)
        varied = np.ptp(points, axis=0) > 0
        return np.allclose(points[0][varied], first[varied])
