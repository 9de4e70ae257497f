"""A score: a public function of noisy means, and how all statistics of a run share one release.

Notation:

    ======  ===========================================================  ========
    symbol  meaning                                                      shape
    ======  ===========================================================  ========
    J       different statistics of a run's scores                       integer
    D_j, n  diameter of statistic j, number of records
    m, s    noisy means of a statistic, and their noise                  (k,)
    mu      of the release
    ======  ===========================================================  ========

Means of statistic j are divided by D_j / n, so that one record moves each of them by 1 at most,
and all J together by sqrt(J); one Gaussian release has noise sqrt(J) / mu, so the means of
statistic j have D_j sqrt(J) / (n mu). All that is computed from them costs nothing more.
"""

from __future__ import annotations

import copy
import hashlib
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import chain
from statistics import NormalDist
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.convert import BlockScores, as_labels
from privbo_plugins.errors import NotLossesError, PrivacyError
from privbo_plugins.sanitize import call, of_converting, public_name, unheard
from privbo_plugins.scores.statistics import (
    Losses,
    Moments,
    Pairs,
    PerRecord,
    Predictions,
    Statistic,
)
from privbo_plugins.settings import between, plain

Array = NDArray[np.float64]
Combine = Callable[[Array, Array], Any]
"""From means and their noise to a score; NaN where it is not defined."""

_TELLING = 2.0
"""A denominator of fewer standard deviations of its noise divides nothing."""

_CLIPPED = 0.9
"""A mean of squared targets, or of errors, beyond which a range has clipped nearly all of them."""

_AT_WORST = 0.05
"""Distance from the worst number within which the means of a function of one's own are there."""

_SURE = 4.0
"""Standard deviations of noise beyond which a doubt is shown: one release in 10^4 misleads."""


class Estimate(NamedTuple):
    """A released score, and the standard deviation that noise gives it."""

    value: float
    sd: float


@dataclass(frozen=True)
class ScoreFacts:
    """What is public of a score, and stored with its run.

    Attributes:
        name: Under which it is shown.
        low: Least value; smaller ones count as it.
        high: Largest.
        greater_is_better: Whether large values are good.
        releases: What is released for it, in words; scores of one statistic share it.
        diameter: Of its statistic.
        k: Numbers that its statistic releases.
        place: Which of the run's statistics that is.
        setup: A digest of its settings, the positive class among them; of functions their names.
        positive: The positive label, as Python writes it; empty where there is none to tell.
    """

    name: str
    low: float
    high: float
    greater_is_better: bool
    releases: str
    diameter: float
    k: int
    place: int = 0
    setup: str = ""
    positive: str = ""

    @property
    def worst(self) -> float:
        """The value where it is not defined."""
        return self.low if self.greater_is_better else self.high

    def facts(self) -> dict[str, Any]:
        """JSON-ready fields."""
        return {one.name: getattr(self, one.name) for one in fields(ScoreFacts)}


class Score(ScoreFacts):
    """A public function of the noisy means of a statistic.

    Args:
        name: Under which it is shown.
        statistic: What is released; of a class of your own D is that of all of [low, 1]^k.
        combine: From means m and their noise s, shape (k,) each, to a number; NaN where it is not
            defined. See :func:`ratio`. It must keep and print nothing.
        low: Least value of the score; the estimate is clipped to [low, high].
        high: Largest.
        greater_is_better: Whether large values are good.
        vectorized: Whether ``combine`` takes m and s of shape (k, B) and makes B numbers, shape
            (B,). Columns are the means with s, then those around them with s of 0.
        positive: The positive label, as Python writes it, for those who read of the run.

    Raises:
        ValueError: If the name, the range, the statistic or a switch makes no sense, or
            ``combine`` gives no number of k means of 0.5.

    Example:
        >>> from privbo_plugins.scores.statistics import PerRecord
        >>> hit = PerRecord(lambda told: np.equal(told.y_true, told.predicted))
        >>> score = Score("hits", hit, lambda m, s: m[0])
        >>> score.estimate(np.array([0.75]), np.array([0.125]))
        Estimate(value=0.75, sd=0.125)
    """

    def __init__(
        self, name: str, statistic: Statistic, combine: Combine, low: float = 0.0,
        high: float = 1.0, *, greater_is_better: bool = True, vectorized: bool = False,
        positive: str = "",
    ) -> None:  # fmt: skip
        if not (isinstance(name, str) and 0 < len(name) <= 60 and name.isprintable()):
            raise ValueError("A score's name must be a text of 1 to 60 printable characters.")
        if not (math.isfinite(high - low) and low < high):
            raise ValueError(f"A score needs finite low < high, got {low!r} and {high!r}.")
        if not isinstance(statistic, Statistic):
            raise ValueError(
                "statistic must be one of privbo_plugins.scores.statistics, such as Cells() or "
                f"PerRecord(function), got a {type(statistic).__name__}."
            )
        D = _diameter(statistic)
        if not 0.0 < D < math.inf:
            raise ValueError("A statistic needs k of 1 at least, and low below 1.")
        if not _is_ours(type(statistic)):  # it fails for a record unheard
            _asked(statistic, partial(statistic.checked, np.zeros((1, statistic.n_columns))))
        if not {type(greater_is_better), type(vectorized)} <= {bool}:  # asked after the draw, too
            raise ValueError("greater_is_better and vectorized of a score must be True or False.")
        if isinstance(statistic, PerRecord) and not greater_is_better:
            statistic = replace(statistic, worst=1.0)
        _probe(combine, (statistic.k, 2) if vectorized else (statistic.k,))
        told = f"{type(statistic).__name__.lower()}: {statistic.k} means"
        setup = hashlib.sha256(repr(_described([statistic, combine])).encode()).hexdigest()[:12]
        super().__init__(
            plain(name), float(low), float(high), greater_is_better, told, D, statistic.k,
            setup=setup, positive=positive,
        )  # fmt: skip
        object.__setattr__(self, "statistic", statistic)
        object.__setattr__(self, "combine", combine)
        object.__setattr__(self, "vectorized", vectorized)

    statistic: Statistic
    combine: Combine
    vectorized: bool

    def __repr__(self) -> str:
        of = [f"labels={known!r}"] if (known := getattr(self.statistic, "labels", None)) else []
        of += [f"positive={self.positive}"] * bool(self.positive)
        return f"Score({', '.join([repr(self.name), *of])})"

    @property
    def own_code(self) -> bool:
        """Checks whether a user's code may be called with what was drawn."""
        ours = type(self) is Score and _is_ours(type(self.statistic))
        return not (ours and _is_known(self.combine))

    def called(self, name: str) -> Score:
        """Makes the same score under another name, as where a run has two of one kind.

        Args:
            name: 1 to 60 printable characters.

        Raises:
            ValueError: If it is not.

        Example:
            >>> from privbo_plugins import scores
            >>> scores.f1(positive=0).called("f1 of 0").name
            'f1 of 0'
        """
        return Score(
            name, self.statistic, self.combine, self.low, self.high, positive=self.positive,
            greater_is_better=self.greater_is_better, vectorized=self.vectorized,
        )  # fmt: skip

    def estimate(self, m: Array, s: Array) -> Estimate:
        """The score of noisy means, clipped to its range, and its standard deviation.

        The deviation is that of the function's differences over one standard deviation of each
        mean (the delta method without derivatives).

        Args:
            m: Noisy means, shape (k,).
            s: Their noise, shape (k,).
        """
        return self._clipped(self._values(m, s))

    def _clipped(self, values: Array) -> Estimate:
        value, sd, most = float(values[0]), float(deviation(values[1:])), self.high - self.low
        if not math.isfinite(value):
            return Estimate(self.worst, most)
        return Estimate(min(max(value, self.low), self.high), sd if sd < most else most)

    def _values(self, m: Array, s: Array) -> Array:
        """Computes the number, then without noise that of the means and of those around them."""
        M, S = np.column_stack([m, around(m, s)]), np.zeros((len(s), 2 + 2 * np.count_nonzero(s)))
        S[:, 0] = s  # differences are those of the function without noise
        pairs = [(M, S)] if self.vectorized else zip(M.T, S.T, strict=True)
        return np.concatenate([_called(self.combine, *pair) for pair in pairs])


def _probe(combine: Combine, shape: tuple[int, ...]) -> None:
    """Checks once, before anything is spent, that a function makes a number of means.

    Raises:
        ValueError: If it does not.
    """
    made, raised = np.full(shape[1:], math.nan), ""
    try:
        with np.errstate(all="ignore"):
            made = combine(np.full(shape, 0.5), np.full(shape, 0.1))
    except Exception as error:
        if len(shape) > 1 or not isinstance(error, ArithmeticError | ValueError):
            raised = public_name(error)  # else it may be defined of other means
    try:
        _plain(made, shape)
    except Exception:
        raised = "no number"
    if raised:  # not while it is handled: its own text may quote what it holds
        raise ValueError(
            "combine must make a number, or vectorized one a column, of two arrays of shape "
            f"{shape}, means and their noise; of means of 0.5 it made {raised}. NaN is where it "
            "is not defined."
        )


def _described(part: Any) -> Any:
    """Describes settings of a score so that another process can compare them.

    A callable or object of a user's own is its name: what it holds may be what it has seen.
    """
    part = part.tolist() if isinstance(part, np.ndarray | np.generic) else part
    if isinstance(part, Mapping | set | frozenset):
        pairs = part.items() if isinstance(part, Mapping) else part
        return sorted(map(_described, pairs), key=str)
    if isinstance(part, list | tuple):
        return [_described(one) for one in part]
    if isinstance(part, int | float):  # 0, 0.0 and False are one label
        return int(part) if part % 1 == 0 else float(part)
    if part is None or isinstance(part, str | bytes):
        return np.asarray(as_labels([part])).tolist()[0]  # of a subclass, the text that it is
    maker = part.func if isinstance(part, partial) else type(part)
    named = [part, maker, type(maker)]
    name = next(one.__qualname__ for one in named if hasattr(one, "__qualname__"))
    if not _is_ours(maker):
        return [name]
    given = [part.args, part.keywords] if isinstance(part, partial) else vars(part)
    return [name, _described(given)]


def _is_ours(maker: Any) -> bool:
    """Checks whether this package holds the very class or function under its name."""
    home: Any = getattr(maker, "__module__", None)
    name: Any = getattr(maker, "__qualname__", None)
    ours = type(home) is type(name) is str and home.startswith("privbo_plugins.")
    return ours and getattr(sys.modules.get(home), name, None) is maker  # else it says so alone


def _is_known(part: Any) -> bool:
    """Checks whether part of a combination is a function of this package, or plain data."""
    if type(part) is partial:
        return all(map(_is_known, (part.func, *part.args, *chain(*part.keywords.items()))))
    if type(part) is np.ndarray:
        return part.dtype.kind in "biuf"
    plain = part is None or type(part) in (bool, int, float, str)
    return plain or (type(part) is FunctionType and _is_ours(part))


def _diameter(own: Statistic) -> float:
    """D; of a class of a user's own that of all vectors that clipping leaves.

    Raises:
        ValueError: If such a class has another mean, which clips no record.
    """
    if _is_ours(type(own)):
        return own.diameter
    if type(own).mean is not Statistic.mean:
        raise ValueError(
            "The mean of a statistic of your own must be Statistic's, which clips what each "
            "record adds: write vectors(rows), or take PerRecord(function)."
        )
    return Statistic.diameter.fget(own)  # type: ignore[attr-defined,no-any-return]


def _plain(made: Any, shape: tuple[int, ...]) -> Array:
    """Makes plain floats of what a function of means returned.

    Raises:
        Exception: If it is no real number, or not one a column.
    """
    real = not isinstance(made, np.ndarray | np.generic) or made.dtype.kind in "fiub"
    if real and len(shape) == 1:
        return np.array([float(made)])
    if real and type(made) is np.ndarray and made.shape == shape[1:]:
        return made.astype(np.float64)
    raise TypeError


def _called(combine: Combine, m: Array, s: Array) -> Array:
    """Calls a function of means; NaN for what it makes no number of."""
    try:
        with np.errstate(all="ignore"):
            # copies, laid out alike: a view's base holds the means around, too
            return _plain(combine(np.array(m, order="C"), np.array(s, order="C")), m.shape)
    except KeyboardInterrupt:  # charge and draw stand, and the next attempt asks again
        raise
    except BaseException:  # of one draw it would end each attempt
        return np.full(m.shape[1:] or 1, math.nan)


def around(m: Array, s: Array) -> Array:
    """Means, then each with one standard deviation of its noise more and less, (k, 1 + 2 k)."""
    steps = np.diag(s)[:, s != 0.0]
    return np.column_stack([m, m[:, None] + steps, m[:, None] - steps])


def deviation(values: Array) -> Any:
    """Standard deviation of functions of noisy means, from values :func:`around` them (..., B)."""
    with np.errstate(all="ignore"):  # entered anew: a function of a user's may have set it
        steps = np.abs(values[..., 1:] - values[..., :1]).reshape(*values.shape[:-1], 2, -1)
        # the larger way: of a distance, half of what lies between may be nothing
        return np.sqrt((steps.max(axis=-2, initial=0.0) ** 2).sum(axis=-1))


def ratio(top: Callable[[Array], Any], bottom: Callable[[Array], Any], m: Array, s: Array) -> Any:
    """A ratio of two functions of noisy means.

    NaN where the lower one lies within two standard deviations of its noise from zero: what it
    divides is then noise.

    Args:
        top: Of the means to a number, or to several.
        bottom: Likewise.
        m: As ``combine`` of a :class:`Score` takes them; of columns, which lie around the first,
            the noise of the denominator is that between them.
        s: Likewise.
    """
    below = np.ma.filled(np.asanyarray(bottom(m), dtype=float), math.nan)
    if m.ndim == 1:
        noise = deviation(np.stack([bottom(at) for at in around(m, s).T], axis=-1))
    else:
        noise = deviation(below[..., 1:])[..., None] * s.any(axis=0)
    telling = below > _TELLING * noise
    return np.where(telling, np.ma.filled(top(m) / below, math.nan), math.nan)


# All scores of a run ----------------------------------------------------------------------------


def statistics_of(scores: Sequence[ScoreFacts]) -> tuple[Statistic, ...]:
    """The different statistics of scores, in their order.

    Raises:
        PrivacyError: If a score was read from a vault: then the process holds no function.
    """
    found: list[Statistic] = []
    for score in scores:
        if not isinstance(score, Score):
            raise PrivacyError(
                "This process knows the scores of the run by name alone: give it scores= as the "
                "run was begun with. Nothing was stored or charged."
            )
        if score.statistic not in found:
            found.append(score.statistic)
    return tuple(found)


def n_statistics(scores: Sequence[ScoreFacts]) -> int:
    """J, also of scores that are known by name alone."""
    return 1 + max(score.place for score in scores)


def rows_of(scores: Sequence[ScoreFacts], returned: Any) -> Array:
    """The rows of all statistics side by side, shape (n, c), in the trial's process.

    Raises:
        NotLossesError: If an objective returned no predictions; never for an entry.
    """
    if not isinstance(returned, Predictions):
        raise NotLossesError(
            "With scores= an objective must return scores.predictions(y, predicted=..., "
            "probabilities=...), of privbo_plugins; it returned something else."
        )
    if any(issubclass(type(part), BlockScores) for part in vars(returned).values()):
        raise NotLossesError(_OF_BLOCKS)  # by its type: asking the object would run its code
    rows = []
    for own in statistics_of(scores):
        try:
            rows.append(_asked(own, partial(own.rows, returned)))
        except NotLossesError as error:
            names = [one.name for one in scores if isinstance(one, Score) and one.statistic == own]
            raise NotLossesError(f"For {', '.join(names)}: {error}") from None
    known = returned.known
    n = len(rows[0])
    fine = known is None or (
        type(known) is np.ndarray and known.dtype == bool and known.shape == (n,)
    )
    if not fine or {len(own) for own in rows} != {n}:
        raise NotLossesError("Predictions must be of the same records; lengths differ.")
    found = np.hstack(rows)
    if known is not None:
        found[~known] = math.nan  # what stands in their place is another record's
    return found


_OF_BLOCKS = (
    "Scores of blocks are no predictions of records: a record may count in several of them. "
    "Return them as they are, without scores=. Nothing was stored or charged."
)


def _asked(own: Statistic, act: Callable[[], Array]) -> Array:
    """Asks a statistic of records; its own errors and warnings may quote one.

    Raises:
        PrivacyError: In the engine's own words; NotLossesError for another outer shape.
    """
    ours = _is_ours(type(own))
    with unheard, np.errstate(all="ignore"):
        made, error = call(act, lambda raised: (ours and of_converting(raised)) or _failed(raised))
    if error is not None:
        raise _failed(error) if isinstance(error, SystemExit) else error
    return np.asarray(made)


def _failed(raised: BaseException) -> PrivacyError:
    return PrivacyError(
        f"A statistic of the scores raised {public_name(raised)}, whose text is withheld: it may "
        "quote a record. Nothing was stored or charged."
    )


def checked_rows(scores: Sequence[ScoreFacts], rows: Array) -> Array:
    """Rows as :func:`rows_of` makes them, perhaps in another process.

    Raises:
        NotLossesError: If they have another shape.
    """
    if isinstance(rows, BlockScores):
        raise NotLossesError(_OF_BLOCKS)
    c = sum(statistic.n_columns for statistic in statistics_of(scores))
    if rows.dtype != np.float64 or rows.ndim != 2 or rows.shape[1] != c or not len(rows):
        raise NotLossesError(
            "With scores= an objective must return scores.predictions(...), of at least one "
            "record. Nothing was stored or charged."
        )
    return rows


def joined_means(
    blocks: Iterable[Array], statistics: Sequence[Statistic], scales: Sequence[float]
) -> Array:
    """Means of all statistics, each over its sensitivity; replace-one L2 sensitivity sqrt(J).

    Args:
        blocks: Blocks of rows of all statistics, shape (n_block, c) each.
        statistics: In the order of their columns.
        scales: D_j / n.
    """
    rows = np.concatenate([*blocks])
    ends = np.cumsum([statistic.n_columns for statistic in statistics])
    parts = np.split(rows, ends[:-1], axis=1)
    means = [
        _asked(own, partial(type(own).mean, own, [part])) / scale
        for own, part, scale in zip(statistics, parts, scales, strict=True)
    ]
    return np.concatenate(means)


def scales_of(statistics: Sequence[Statistic], n: int) -> list[float]:
    """D_j / n of each statistic."""
    return [_diameter(statistic) / n for statistic in statistics]


def evaluated(
    scores: Sequence[Any], released: Sequence[float], n: int, noise: float
) -> list[Array]:
    """Evaluates all scores of a release once, at its means and at those around them.

    Args:
        scores: Of the run.
        released: What :func:`joined_means` gave, under noise.
        n: Number of records.
        noise: Standard deviation of each number released.
    """
    pairs = zip(scores, _means(scores, released, n, noise), strict=True)
    return [score._values(m, s) for score, (m, s) in pairs]


def estimates(scores: Sequence[Any], values: Sequence[Array]) -> dict[str, Estimate]:
    """All scores of a release, by name, from what :func:`evaluated` gives."""
    return {score.name: score._clipped(own) for score, own in zip(scores, values, strict=True)}


def correlations(scores: Sequence[Any], values: Sequence[Array]) -> dict[str, float]:
    """Correlates the noise of each further score with that of the first, by name.

    It is the correlation of the differences that their deviations rest on, both ways: near its
    least a distance grows either way. It is 0 for scores of other statistics, and where a score
    is not defined or has no differences.

    Args:
        scores: Of the run.
        values: What :func:`evaluated` gives.
    """
    first, *others = scores
    pairs = zip(scores, values, strict=True)
    alike = {score.name: own for score, own in pairs if score.statistic == first.statistic}
    if len(alike) == 1:
        return dict.fromkeys((other.name for other in others), 0.0)
    rows = np.array([*alike.values()])
    with np.errstate(all="ignore"):  # as for a deviation
        rows[~np.isfinite(rows).all(axis=1)] = math.nan
        steps = rows[:, 2:] - rows[:, 1:2]
        steps /= np.linalg.norm(steps, axis=1, keepdims=True)
        found = np.nan_to_num(np.clip(steps @ steps[0], -1.0, 1.0)).tolist()
    known = dict(zip(alike, found, strict=True))
    return {other.name: known.get(other.name, 0.0) for other in others}


def _means(
    scores: Sequence[Any], released: Sequence[float], n: int, noise: float
) -> list[tuple[Array, Array]]:
    """Noisy means of each score's statistic, and their noise."""
    statistics = statistics_of(scores)
    scales = scales_of(statistics, n)
    ends = np.cumsum([statistic.k for statistic in statistics])
    parts = np.split(np.asarray(released, dtype=float), ends[:-1])
    places = [statistics.index(score.statistic) for score in scores]
    return [(parts[j] * scales[j], np.full(len(parts[j]), noise * scales[j])) for j in places]


def doubts(scores: Sequence[Any], released: Sequence[float], n: int, noise: float) -> list[str]:
    """Lists settings that a release shows, beyond its noise, not to be those of the records.

    Args:
        scores: As for :func:`evaluated`.
        released: Likewise.
        n: Likewise.
        noise: Likewise.
    """
    pairs = zip(scores, _means(scores, released, n, noise), strict=True)
    return [f"{score.name}: {doubt}" for score, means in pairs if (doubt := _doubt(score, *means))]


def _doubt(score: Score, m: Array, s: Array) -> str:
    own, best = score.statistic, score.high if score.greater_is_better else score.low
    values = score._values(m, s)
    value, sure = float(values[0]), _SURE * float(deviation(values[1:]))
    if own.others and m[-1] > _SURE * s[-1]:
        return f"about {m[-1]:.0%} of the records have other labels, or groups, than it was given"
    far = np.abs(m - own.worst).max() if isinstance(own, PerRecord) else math.inf
    if far <= min(_TELLING * s[0], _AT_WORST):
        return "no record seems better than the worst: call its function on a made-up one"
    if isinstance(own, Pairs) and value < 0.5 - sure:
        return "negative records rank above positive ones: see the order of probabilities' columns"
    if of_range := _doubt_of_range(own, m, s, value):
        return of_range
    beyond = (value - best) * (1.0 if score.greater_is_better else -1.0)
    sure += 1e-6 * (score.high - score.low)  # without noise, rounding
    return "it lies beyond its best value: a prevalence or range is wrong" if beyond > sure else ""


def _doubt_of_range(own: Statistic, m: Array, s: Array, value: float) -> str:
    """Says what means of numbers show of the target's range."""
    if isinstance(own, Moments):
        told = f"the target's range [{own.y_low:g}, {own.y_high:g}]"
        if m[2] > _CLIPPED + _SURE * s[2]:
            return f"nearly all targets lie at the ends of {told}, or beyond: it may be of others"
        if not math.isfinite(value):
            return f"targets vary less than the noise: {told} may be far too wide"
    if isinstance(own, Losses) and own.labels is None:
        if m[0] > _CLIPPED + _SURE * s[0]:
            return "nearly all errors are as wide as the target's range, which may be too narrow"
        if m[0] < _TELLING * s[0]:
            return "errors are less than the noise: the target's range may be far too wide"
    return ""


def lacking(
    scores: Sequence[ScoreFacts], constraints: Mapping[str, float], feasible_with: float,
    found: Mapping[str, Estimate],
) -> dict[str, float]:  # fmt: skip
    """Lists by name what scores lack of their constraints; <= 0 where they keep it.

    A score keeps it if it does with probability ``feasible_with`` by the noise of its release.
    """
    z = NormalDist().inv_cdf(feasible_with)
    signs = {score.name: 1.0 if score.greater_is_better else -1.0 for score in scores}
    return {
        name: signs[name] * (wanted - found[name].value) + z * found[name].sd
        for name, wanted in constraints.items()
    }


def sd_of(name: str) -> str:
    """Name under which the standard deviation of a score stands beside it."""
    return f"{name}_sd"


def lack_of(name: str) -> str:
    """Name under which what a score lacks of its constraint stands beside it; <= 0 keeps it."""
    return f"{name}_lacks"


def front(
    scores: Sequence[ScoreFacts], releases: Sequence[Mapping[str, Sequence[float]]]
) -> list[bool]:
    """Tells of each release whether none betters it: as good in all scores and better in one."""
    signs = [1.0 if score.greater_is_better else -1.0 for score in scores]
    values = np.array([[one[score.name][0] for score in scores] for one in releases]) * signs
    return [not ((values >= own).all(axis=1) & (values > own).any(axis=1)).any() for own in values]


def check_constraints(
    constraints: Mapping[str, float] | None, scores: Sequence[ScoreFacts] | None
) -> None:
    """Checks that constraints are of a run's scores, each within the score's range.

    Raises:
        ValueError: If one is not.
    """
    known = {score.name: score for score in scores or ()}
    if not isinstance(constraints, Mapping | None):
        raise ValueError(
            'constraints must be a dictionary by score, as {"recall": 0.8}, got a '
            f"{type(constraints).__name__}."
        )
    for name, wanted in (constraints or {}).items():
        if name not in known:
            listed = ", ".join(map(repr, known)) or "none, as this run has no scores"
            raise ValueError(
                f"constraints= are of scores by name, got {name!r}; known: {listed}. "
                "Add it to the scores."
            )
        between(known[name].low, known[name].high).check(f"constraints[{name!r}]", wanted)


def checked_scores(given: Any) -> tuple[ScoreFacts, ...] | None:
    """Scores of a run: names of registered ones, scores of one's own, or facts as stored.

    Raises:
        ValueError: If one is none of these, or two have one name.
    """
    from privbo_plugins.scores.registry import named

    if given is None:
        return None
    listed = [given] if isinstance(given, str | ScoreFacts) else list(given)
    if not listed:
        raise ValueError("scores must name one score at least, as scores=['f1', 'roc_auc'].")
    made = tuple(_made(one, named) for one in listed)
    names = [score.name for score in made]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(
            f"Two scores have the name {twice[0]!r}; give one another: "
            f"scores.SCORES[{twice[0]!r}](...).called('another')."
        )
    return tuple(_placed(score, made) for score in made)


def one_score(given: Any, listed: Sequence[ScoreFacts] | None = None) -> Score:
    """A score by its name, or of one's own.

    Args:
        given: The score or the name.
        listed: Those of the run, one of which a name means before a registered one.

    Raises:
        ValueError: If it is neither.
    """
    same = [own for own in listed or () if own.name == given and isinstance(own, Score)]
    (made,) = checked_scores(same or [given]) or ()
    if not isinstance(made, Score):
        raise ValueError("A last release needs a score, or the name of a registered one.")
    return made


def _placed(score: ScoreFacts, scores: Sequence[ScoreFacts]) -> ScoreFacts:
    """A copy that knows the place of its statistic."""
    if not isinstance(score, Score):
        return score
    own = copy.copy(score)
    object.__setattr__(own, "place", statistics_of(scores).index(score.statistic))
    return own


def check_directions(scores: Sequence[ScoreFacts] | None, *directions: str) -> None:
    """Checks that a host optimises scores in their directions.

    Args:
        scores: Of the run; None where it has none.
        directions: Of the host's values, MAXIMIZE or MINIMIZE, as the first scores.

    Raises:
        ValueError: If it does not.
    """
    for score, direction in zip(scores or (), directions, strict=False):
        wanted = "MAXIMIZE" if score.greater_is_better else "MINIMIZE"
        if direction != wanted:
            better = "larger" if score.greater_is_better else "smaller"
            raise ValueError(
                f"Of {score.name!r} {better} values are better: {wanted.lower()} it "
                f"(direction={wanted.lower()!r}, or mode={wanted.lower()[:3]!r})."
            )


def _made(one: Any, named: Callable[[str], Score]) -> ScoreFacts:
    if isinstance(one, ScoreFacts):
        return one
    if isinstance(one, Mapping):
        return ScoreFacts(**one)
    if isinstance(one, str):
        return named(one)
    raise ValueError(
        "scores must be names such as 'f1', or scores such as scores.f1(labels=('no', 'yes')), "
        f"got a {type(one).__name__}."
    )
