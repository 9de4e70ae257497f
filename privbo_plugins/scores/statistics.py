"""What a trial releases of its records for scores that no mean of one loss is: k means at once.

Notation:

    ======  ===========================================================  ========
    symbol  meaning                                                      shape
    ======  ===========================================================  ========
    n       validation records                                           integer
    v       bounded vector of a record                                   (k,)
    D       diameter: the most that vectors of two records differ        scalar
    U       ordered pairs: a positive record ranks above a negative one  scalar
    p       share of positive records, prevalence                        scalar
    ======  ===========================================================  ========

Replacing one record moves the mean of v by D / n at most, in L2 norm, for any two rows of it:
vectors are made of rows inside the mechanism, and a row that is none becomes a constant there.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.convert import as_floats, as_labels, as_records, each_alone
from privbo_plugins.errors import NotLossesError
from privbo_plugins.losses import (
    _check_lengths,
    _check_range,
    _columns,
    _flat,
    _probabilities,
)
from privbo_plugins.privacy.mechanisms import BoundedMean
from privbo_plugins.sanitize import forgiven, unheard
from privbo_plugins.settings import between, integer

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class Predictions:
    """What a model says of the validation records, one entry a record in the same order.

    Made by :func:`predictions`. ``known`` tells which records a model could predict (n,); the
    others count as the worst in every score: what stands there is another's. None for all.
    """

    y_true: Any
    predicted: Any = None
    probabilities: Any = None
    classes: Any = None
    decision: Any = None
    group: Any = None
    known: Any = None

    def __repr__(self) -> str:
        return "Predictions(...)"  # a host that was given one logs it

    def part(self, name: str) -> Any:
        """Returns what was given under a name.

        Raises:
            NotLossesError: If nothing was.
        """
        found = getattr(self, name)
        if found is None:
            raise NotLossesError(
                f"A score of this run needs {name}= of each record: return "
                f"scores.predictions(y, {name}=...). Nothing was stored or charged."
            )
        return found


def predictions(
    y_true: Any, predicted: Any = None, *, probabilities: Any = None, classes: Any = None,
    decision: Any = None, group: Any = None,
) -> Predictions:  # fmt: skip
    """Holds predictions, as an objective returns them; scores of the run take what they need.

    Args:
        y_true: Targets, or labels (n,).
        predicted: Predicted labels, or numbers (n,).
        probabilities: Of each class (n, K), or of the positive one (n,).
        classes: The class of each column of probabilities, as ``classifier.classes_``; None where
            labels are 0, 1 and so on, in this order.
        decision: A number that ranks records (n,); by default the positive class's probability.
        group: The public group of each record (n,), for gaps between groups.

    Example:
        >>> predictions([0, 1], predicted=[0, 0]).predicted
        [0, 0]
    """
    return Predictions(y_true, predicted, probabilities, classes, decision, group)


class Statistic(abc.ABC):
    """Means of bounded vectors of records; frozen dataclasses, compared by their settings.

    Attributes:
        k: Numbers that are released.
        low: Least entry of v; the largest is 1.
        others: Whether the last mean is the share of records that have none of its labels.
        takes: The part of predictions that it is made of, beside ``y_true``.
    """

    low, others = 0.0, False
    k: int
    takes: str = "predicted"

    @property
    def n_columns(self) -> int:
        """Numbers in a record's row; as many as are released, unless a statistic says another."""
        return self.k

    @property
    def diameter(self) -> float:
        """D; that of all vectors with entries from ``low`` to 1, unless fewer can be."""
        return (1.0 - self.low) * math.sqrt(self.k)

    @abc.abstractmethod
    def rows(self, told: Predictions) -> Array:
        """Makes one row a record, shape (n, n_columns), in the trial's process.

        Raises:
            NotLossesError: For another outer shape; never for what an entry holds.
        """

    def vectors(self, rows: Array) -> Array:
        """Makes v of any rows (n, n_columns), shape (n, k); :meth:`mean` clips it to [low, 1].

        A record that it fails for counts as 1 in each mean.
        """
        raise NotImplementedError

    def mean(self, blocks: Iterable[Array]) -> Array:
        """The mean of v over all records, shape (k,): a secret.

        Args:
            blocks: Blocks of rows, shape (n_block, n_columns) each.
        """
        total = BoundedMean(1.0)
        for rows in blocks:
            with np.errstate(all="ignore"):  # a warning would tell that some record is odd
                v = each_alone(self.checked, [rows], len(rows))
                v = np.full((len(rows), self.k), math.nan) if v is None else v
                total.add(np.clip(v, self.low, 1.0))
        return total.result()

    def checked(self, rows: Array) -> Array:
        """As :meth:`vectors`, which may change what it is given.

        Raises:
            ValueError: If it does not make k numbers of each row; D is of no others.
        """
        v = np.asarray(self.vectors(rows.copy()), dtype=np.float64)
        if v.shape != (len(rows), self.k):
            raise ValueError("vectors must make k numbers of each row.")
        return v


def _class_of(column: Array, K: int, odd: Any) -> NDArray[np.intp]:
    """Numbers 0 ... K - 1 as they are; all else is ``odd``."""
    fine = (column >= 0) & (column < K) & (column == np.floor(column))
    return np.where(fine, column, odd).astype(np.intp)


def _one_hot(places: NDArray[np.intp], k: int) -> Array:
    return np.asarray(places[:, None] == np.arange(k), dtype=float)


def _indices(name: str, given: Any, known: Sequence[Any]) -> Array:
    """The place of each label among known ones, -1 for none, shape (n,)."""
    found = _flat(name, as_labels(given))
    names = _flat("labels", as_labels(list(known)))
    return _columns(found, names).astype(float)


@dataclass(frozen=True)
class Cells(Statistic):
    """Cells of the confusion matrix, shares of all records, and the rest; D = sqrt(2).

    Row by row: of true class i taken for class j, number i K + j; of two classes true negatives,
    false positives, false negatives, true positives. Cells of a public group stand together.

    A prediction that is no label counts as wrong. A record whose label or group is none of these
    counts in no cell but the last, one that no model can predict as one of the first class taken
    for the last class.

    Attributes:
        labels: The classes, public.
        groups: The groups whose cells stand apart, public; none if all records are one.
    """

    labels: tuple[Any, ...] = (0, 1)
    groups: tuple[Any, ...] = ()

    diameter = math.sqrt(2.0)
    others = True

    @property
    def n_columns(self) -> int:
        """Places of the true and the predicted label, after that of a group."""
        return 3 if self.groups else 2

    @property
    def k(self) -> int:  # type: ignore[override]
        """K² a group, and one for other labels and groups."""
        return max(len(self.groups), 1) * len(self.labels) ** 2 + 1

    def rows(self, told: Predictions) -> Array:
        """Places of the group, the true and the predicted label."""
        _check_classes(told, self.labels)
        y = _indices("y_true", told.y_true, self.labels)
        p = _indices("predicted", told.part("predicted"), self.labels)
        _check_lengths(y, p)
        if not self.groups:
            return np.stack([y, p], axis=1)
        group = _indices("group", told.part("group"), self.groups)
        _check_lengths(y, group, "group")
        return np.stack([group, y, p], axis=1)

    def vectors(self, rows: Array) -> Array:
        """One cell a record."""
        K, (y, p) = len(self.labels), rows[:, -2:].T
        true = _class_of(y, K, 0)
        taken = _class_of(p, K, np.where(np.isnan(y), K - 1, (true + 1) % K))
        group = _class_of(rows[:, 0], len(self.groups), -1) if self.groups else 0
        known = (y != -1.0) & (group != -1)
        return _one_hot(np.where(known, (group * K + true) * K + taken, self.k - 1), self.k)


@dataclass(frozen=True)
class Losses(Statistic):
    """Mean of one bounded loss, and if there is a baseline that of its loss; D = sqrt(k).

    Attributes:
        loss: Of (y_true, prediction), one of :mod:`privbo_plugins.losses`.
        bound: Its largest value; larger ones count as it.
        labels: The class of each column of probabilities; None for other losses.
        baseline: A constant, public prediction to compare with; None for none.
    """

    loss: Callable[..., Array]
    bound: float
    labels: tuple[Any, ...] | None = None
    baseline: float | None = None

    @property
    def takes(self) -> str:  # type: ignore[override]
        """Probabilities, where there are labels of their columns."""
        return "predicted" if self.labels is None else "probabilities"

    @property
    def k(self) -> int:  # type: ignore[override]
        """One loss, or two."""
        return 1 if self.baseline is None else 2

    def rows(self, told: Predictions) -> Array:
        """The losses of each record."""
        more = {} if self.labels is None else {"labels": _classes(told, self.labels)}
        own = [self.loss(told.y_true, told.part(self.takes), **more)]
        if self.baseline is not None:
            own.append(self.loss(told.y_true, np.full(len(own[0]), self.baseline)))
        return np.stack(own, axis=1)

    def vectors(self, rows: Array) -> Array:
        """Losses over their bound; what is no number is 1."""
        return np.where(np.isfinite(rows), rows / self.bound, 1.0)


@dataclass(frozen=True)
class Moments(Statistic):
    """Of errors and targets: means of e², y and y², and with ``mean_error`` of e.

    With W the width of the range, v = (e² / W², y', y'²) and e / W, where y' in [-1, 1] measures y
    from the middle. Points (a, a²) with a in [-1, 1] lie 2 apart at most; so D is sqrt(1 + 4), or
    sqrt(4 + 4) with e.

    Attributes:
        y_low: Least target, public; targets and predictions beyond count as the ends.
        y_high: Largest.
        mean_error: Whether the mean of e is released, too.
    """

    y_low: float
    y_high: float
    mean_error: bool = False

    n_columns = 2
    low = -1.0

    def __post_init__(self) -> None:
        _check_range(self.y_low, self.y_high)

    @property
    def k(self) -> int:  # type: ignore[override]
        """Three means, or four."""
        return 4 if self.mean_error else 3

    @property
    def diameter(self) -> float:
        """See the class."""
        return math.sqrt(8.0 if self.mean_error else 5.0)

    def rows(self, told: Predictions) -> Array:
        """Target and prediction."""
        y = _flat("y_true", as_floats(told.y_true))
        p = _flat("predicted", as_floats(told.part("predicted")))
        _check_lengths(y, p)
        return np.stack([y, p], axis=1)

    def vectors(self, rows: Array) -> Array:
        """A record without numbers counts as a target at one end, taken for the other."""
        W = self.y_high - self.y_low
        odd = ~np.isfinite(rows).all(axis=1)
        inside, ends = np.clip(rows, self.y_low, self.y_high), (self.y_high, self.y_low)
        y, p = (np.where(odd, end, own) for end, own in zip(ends, inside.T, strict=True))
        e, centred = (y - p) / W, np.clip(2.0 * (y - self.y_low) / W - 1.0, -1.0, 1.0)
        own = [e * e, centred, centred * centred]
        return np.stack([*own, e] if self.mean_error else own, axis=1)


@dataclass(frozen=True)
class Bins(Statistic):
    """Of each bin of predicted probabilities the mean of p - y over all records, y in {0, 1}.

    Two records of different bins differ by sqrt(2) at most, two of one bin by its width and 1.

    Attributes:
        labels: Both classes; the second is positive.
        n_bins: Bins of equal width, at least 2.
    """

    labels: tuple[Any, Any] = (0, 1)
    n_bins: int = 10

    takes = "probabilities"
    n_columns = 2
    low = -1.0

    @property
    def k(self) -> int:  # type: ignore[override]
        """One a bin."""
        return self.n_bins

    @property
    def diameter(self) -> float:
        """See the class."""
        return max(math.sqrt(2.0), 1.0 + 1.0 / self.n_bins)

    def rows(self, told: Predictions) -> Array:
        """Label and probability."""
        return _labels_and(_positive(told, self.labels), told, self.labels)

    def vectors(self, rows: Array) -> Array:
        """A record without label and probability is one that a sure model got wrong."""
        y, p = _class_of(rows[:, 0], 2, -1), rows[:, 1]
        odd = (y < 0) | ~((p >= 0.0) & (p <= 1.0))
        y, p = np.where(odd, 0, y), np.where(odd, 1.0, p)
        bin_of = np.minimum((p * self.n_bins).astype(np.intp), self.n_bins - 1)
        return _one_hot(bin_of, self.n_bins) * (p - y)[:, None]


@dataclass(frozen=True)
class Pairs(Statistic):
    """Ordered pairs of a positive and a negative record, U / n²; ties count half.

    Let one record be replaced. If it was positive, the pairs that it takes part in counted at most
    the number of negative records, else at most that of positive ones, and so does each pair of
    the record in its place: one sum falls by a number in [0, n - 1], the other rises by one. So U
    moves by n - 1 at most, also where the label changes, and U / n² by less than 1 / n: D = 1.
    Without a public prevalence the share of positive records is released beside it, which moves
    by 1 / n at most, too: D = sqrt(2).

    Attributes:
        labels: Both classes; the second is positive.
        prevalence: p, public; None releases it.
    """

    labels: tuple[Any, Any] = (0, 1)
    prevalence: float | None = None

    takes = "probabilities"
    n_columns = 2

    @property
    def k(self) -> int:  # type: ignore[override]
        """Pairs, and the prevalence if it is not public."""
        return 1 if self.prevalence is not None else 2

    def rows(self, told: Predictions) -> Array:
        """Label and decision."""
        if told.decision is None:
            return _labels_and(_positive(told, self.labels), told, self.labels)
        return _labels_and(_flat("decision", as_floats(told.decision)), told, self.labels)

    def mean(self, blocks: Iterable[Array]) -> Array:
        """Counts pairs of all records by sorting.

        A positive without a number ranks below all, a negative one above; one without a label is
        a negative one without a number.
        """
        rows = np.concatenate([*blocks])
        with np.errstate(all="ignore"):
            label, s = _class_of(rows[:, 0], 2, -1), rows[:, 1]
            positive = label == 1
            odd = (label < 0) | ~np.isfinite(s)
            s = np.where(odd, np.where(positive, -np.inf, np.inf), s)
        below = np.sort(s[~positive])
        twice = sum(
            int(np.searchsorted(below, s[positive], side=side).sum(dtype=np.int64))
            for side in ("left", "right")
        )
        n = len(rows)
        shares = [twice / (2 * n * n), int(positive.sum()) / n]
        return np.array(shares[: self.k])


def _positive(told: Predictions, labels: Sequence[Any]) -> Array:
    """Probabilities of the positive class, shape (n,)."""
    known = _flat("labels", as_labels(_classes(told, labels)))
    P = _probabilities(told.part("probabilities"), known)
    (column,) = _columns(_flat("labels", as_labels([labels[1]])), known)
    fine = (P >= 0.0).all(axis=1) & (P <= 1.0).all(axis=1)
    return np.where(fine, P[:, column], np.nan)


def _classes(told: Predictions, labels: Sequence[Any]) -> list[Any]:
    """Lists the class of each column of probabilities.

    Raises:
        NotLossesError: If nothing says it: labels of 0, 1, ... alone have a usual order.
    """
    told.part("probabilities")
    if told.classes is None and tuple(labels) != tuple(range(len(labels))):
        raise NotLossesError(
            f"Nothing says which column of probabilities= is of which of {tuple(labels)!r}: give "
            "predictions(..., classes=model.classes_), which scikit-learn sorts, or the classes "
            "in the order of the columns. Nothing was stored or charged."
        )
    return list(labels if told.classes is None else told.classes)


def _check_classes(told: Predictions, labels: Sequence[Any]) -> None:
    """Checks that classes that a model has are those of a score; both are public.

    Raises:
        NotLossesError: If they are others.
    """
    known = None if told.classes is None else _flat("classes", as_labels(list(told.classes)))
    if known is not None and {*known.tolist()} != {*labels}:
        raise NotLossesError(
            f"classes= of the predictions are other ones than labels={tuple(labels)!r}. They are "
            "not named, as they come from records: compare them, and give both the same, as "
            'labels=("well", "ill"), whose last one is positive for scores that have a positive '
            "label, unless positive= says another. Nothing was stored or charged."
        )


def _labels_and(numbers: Array, told: Predictions, labels: Sequence[Any]) -> Array:
    _check_classes(told, labels)
    y = _indices("y_true", told.y_true, labels)
    _check_lengths(y, numbers)
    return np.stack([y, numbers], axis=1)


@dataclass(frozen=True)
class PerRecord(Statistic):
    """Means of numbers in [0, 1] that a function of one's own makes; D = sqrt(k).

    It is called once for each record and sees no other one, so that none decides another's
    numbers, nor whether the function fails: some microseconds a record.

    Attributes:
        function: From :class:`Predictions` of one record, its own entries, to its k numbers;
            of ``probabilities`` that is a row. It must keep nothing from one call to the next.
        k: Numbers a record.
        worst: What each of them is for a record without numbers; a :class:`Score` whose small
            values are good takes 1.
    """

    function: Callable[[Predictions], Any]
    k: int = 1
    worst: float = 0.0

    def __post_init__(self) -> None:
        integer(1).check("k", self.k)
        between(0.0, 1.0).check("worst", self.worst)
        object.__setattr__(self, "k", int(self.k))

    def rows(self, told: Predictions) -> Array:
        """The numbers that the function returns; NaN of a record that it fails for.

        Raises:
            NotLossesError: If a part of the predictions has not one entry a record.
        """
        names = [
            name for name, part in vars(told).items()
            if part is not None and name not in ("classes", "known")
        ]  # fmt: skip
        parts = [as_records(getattr(told, name)) for name in names]
        if len({*map(len, parts)}) != 1 or not parts[0]:
            raise NotLossesError(
                "A function of your own scores records one by one: each part of predictions(...) "
                "must have one entry for each record. Nothing was stored or charged."
            )
        found = np.full((len(parts[0]), self.k), np.nan)
        with unheard, np.errstate(all="ignore"):
            for place, own in enumerate(zip(*parts, strict=True)):
                with forgiven:  # what it says may quote a record
                    one = dict(zip(names, own, strict=True))
                    made = as_floats(self.function(replace(told, known=None, **one)))
                    if made is not None and made.size == self.k:
                        found[place] = made.ravel()
        return found

    def vectors(self, rows: Array) -> Array:
        """Numbers as they are; what is none is the worst one."""
        return np.where(np.isfinite(rows), rows, self.worst)
