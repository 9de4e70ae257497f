"""The end of a run: the incumbent, the end of descent and a better point, compared at once.

Notation:

    =======  ==========================================================  ========
    symbol   meaning                                                     shape
    =======  ==========================================================  ========
    theta    end of descent                                              (D,)
    y        losses of a finalist's trial                                (n,)
    B_c      clip of one record's difference of two losses               scalar
    =======  ==========================================================  ========

One release: the mean of (y(incumbent) - y(theta), y(theta) - y(better)), clipped to length B_c.
The recommendation moves on from one finalist to the next only if that gain lies clearly above
zero.
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
    """Mean of (y_1 - y_2, y_2 - y_3, ...), each clipped to B / sqrt(k - 1), shape (k - 1,).

    A row is then at most B long: replace-one L2 sensitivity 2B/n. Each difference is clipped by
    itself, so that a large one takes nothing from another's weight.

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
        D = sign * (Y[:, :-1] - Y[:, 1:])
        most = B / math.sqrt(max(D.shape[1], 1))
        return np.clip(D, -most, most)


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
        if self._plan.n_last == 0 and np.allclose(points[0], points[1]):  # one trial for both
            del points[0]
        self._state.finalists = [self._space.snap(x).tolist() for x in points]

    def query(self, trials: Sequence[str], X: Sequence[Array]) -> Query:
        """Asks what each finalist gains on the one before it, where the host evaluated them."""
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

    def observe(self, release: Release, first: Array) -> None:
        """Learns the gains, and where they were measured."""
        state = self._state
        state.gains = list(release.values)
        state.finalists = [list(x) for x in release.meta["points"]]
        best = self.best(first)
        if best != 1:
            state.path.append(state.finalists[best])

    def best(self, first: Array) -> int:
        """Index of the recommended one: the last that clearly gains on those before it."""
        plan, gains = self._plan, self._state.gains
        sure = SURE * plan.comparison_noise
        harmless = _HARMLESS * plan.comparison_clip / (self._high - self._low)
        best = len(gains) if gains and gains[-1] > sure else 1
        lead = math.fsum(gains[:best])
        left = lead > max(math.sqrt(best) * sure - harmless, 0.0)
        return best if left or not self._evaluated(first) else 0

    def comparison(self, first: Array, *, middle: bool) -> Comparison | None:
        """The released gain on the incumbent; None if no finalist is the incumbent.

        Args:
            first: The incumbent, or the middle, shape (D,).
            middle: Whether it is the middle.
        """
        if not self._evaluated(first):
            return None
        best = self.best(first)
        shown = max(best, 1)
        return Comparison(
            self._state.finalists[0], math.fsum(self._state.gains[:shown]),
            self._plan.comparison_noise * math.sqrt(shown), best > 0,
            self._plan.comparison_clip, middle=middle,
        )  # fmt: skip

    def _evaluated(self, first: Array) -> bool:
        """Tells if the first finalist is the incumbent, but for coordinates that the host fixed.

        It is another one where the incumbent was given up, or the host put a trial elsewhere.
        """
        points = np.array(self._state.finalists)
        varied = np.ptp(points, axis=0) > 0
        return np.allclose(points[0][varied], first[varied])
