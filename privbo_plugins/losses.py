"""Per-record losses for people who tune models, and what to tell a sampler about each.

A private objective returns one loss a validation record::

    from privbo_plugins import losses

    sampler = DPGIBOSampler(mu=1, **losses.bounded_log.settings())
    # ... and in the objective: return losses.bounded_log(y, model.predict_proba(X))

Notation:

    ======  ===========================================================  ==============
    symbol  meaning                                                      shape
    ======  ===========================================================  ==============
    n, K    validation records, classes                                  integers
    y       targets, or labels                                           (n,)
    p       what the model says of them                                  (n,) or (n, K)
    C       ``loss_bound``: released values are clipped to [0, C]        scalar
    B       ``clipping_norm``: largest norm of one record's gradient     scalar
    ======  ===========================================================  ==============

Each loss is a function of (y_true, prediction) that returns float64 of shape (n,). Arrays, lists,
series and tensors are taken, entry by entry. What is no number (NaN, infinity, a list, a
probability outside [0, 1], an unknown label) is NaN in the result, which the mechanism counts as
the worst loss (in a gradient as no slope): whether something is refused depends on the type and
shape of arrays, on lengths and on settings alone, never on a record.

An array of shape (n, 1) holds one value a record, and one of shape (n, K) the probabilities of K
classes. A list says neither: its entries are single values, or rows of as many probabilities as
``labels`` has, or of two without ``labels``.

``settings`` are keywords of ``DPGIBOSampler`` and ``DPGIBOSearch``; ``loss_bound`` or ``bound``
alone is what ``private_objective`` takes. ``benchmarks/heavy_tails.py`` measured what they do.
"""

from __future__ import annotations

import abc
import contextlib
import itertools
import math
import operator
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.convert import as_floats, as_labels, as_rows, as_said
from privbo_plugins.errors import NotLossesError
from privbo_plugins.groups import PERSON, Groups, Unit
from privbo_plugins.settings import is_finite, is_range

Array = NDArray[np.float64]
Labels = Sequence[Any] | NDArray[Any]
"""The class of each column of probabilities; public, as ``classifier.classes_`` is."""

_TINY = float(np.finfo(np.float64).eps)
"""Probabilities below it count as it, as in scikit-learn."""

_SUM_TOLERANCE = 1e-3
"""So far may a row of probabilities be from adding up to one: float16 is that coarse."""

_UNCLIPPED = 2.0
"""B over C at which few gradients of a smooth loss are clipped: see the benchmark."""

_FAR = 4.0
"""So many spreads from its prediction counts a target at most, in released values."""


class LossSettings(TypedDict):
    """Keywords of a sampler or a search."""

    loss_bound: float
    clipping_norm: float


class BoundedLoss:
    """A loss that lies in [0, C] for all data; C is 1 but where classes are weighted.

    Attributes:
        loss_bound: Its largest value, C.
        clipping_norm: The recommended B.
    """

    loss_bound: float = 1.0
    clipping_norm: float = _UNCLIPPED

    def settings(self) -> LossSettings:
        """Keywords of a sampler: ``DPGIBOSampler(mu=1, **losses.brier.settings())``."""
        return {"loss_bound": self.loss_bound, "clipping_norm": self.clipping_norm}


class ZeroOne(BoundedLoss):
    """1 where the predicted label is not the true one, else 0.

    Example:
        >>> zero_one(["cat", "dog"], ["cat", "cat"]).tolist()
        [0.0, 1.0]
        >>> zero_one.loss_bound
        1.0
    """

    clipping_norm = 1.0

    def __call__(self, y_true: Any, prediction: Any) -> Array:
        """One loss a record, shape (n,).

        Args:
            y_true: True labels (n,), numbers or strings.
            prediction: Predicted labels (n,).

        Raises:
            NotLossesError: For another outer shape; a ValueError that quotes no value.
        """
        y, p = _flat("y_true", as_labels(y_true)), _flat("prediction", as_labels(prediction))
        _check_lengths(y, p)
        return _differences(y, p)


class Weighted(ZeroOne):
    """0-1 loss whose errors weigh as much as the true label: of a rare class more than others.

    Args:
        weights: By label, > 0: from public knowledge, or from records that are not protected, as
            training records. A label that is not named counts as the worst loss.

    Raises:
        ValueError: For other weights.

    Example:
        >>> costly = weighted({"well": 0.5, "ill": 5.0})
        >>> costly(["ill", "well", "ill"], ["well", "ill", "ill"]).tolist(), costly.loss_bound
        ([5.0, 0.5, 0.0], 5.0)
    """

    def __init__(self, weights: Mapping[Any, float]) -> None:
        for weight in weights.values():
            _check_within("A weight", weight, math.inf)
        self.weights = dict(weights)
        self.loss_bound = self.clipping_norm = max(self.weights.values(), default=1.0)

    def __call__(self, y_true: Any, prediction: Any) -> Array:
        """One loss a record, shape (n,), as of :class:`ZeroOne`."""
        wrong = super().__call__(y_true, prediction)
        known = {as_said(label): weight for label, weight in self.weights.items()}
        labels = _said(_flat("y_true", as_labels(y_true)))
        weights = [known.get(label, math.nan) for label in labels]
        return np.asarray(wrong * np.array(weights, dtype=float))


class Brier(BoundedLoss):
    """Half the squared distance of the predicted probabilities from the label, in [0, 1].

    For two classes that is (p - y)², p the probability of the second. It is a proper score: the
    true probabilities minimise its mean. scikit-learn's ``brier_score_loss`` without
    ``scale_by_half`` is twice as much where there are more than two classes.

    Example:
        >>> brier([0, 1], [0.25, 0.5]).tolist()
        [0.0625, 0.25]
        >>> brier(["b"], [[0.5, 0.5, 0.0]], labels=["a", "b", "c"]).tolist()
        [0.25]
    """

    def __call__(self, y_true: Any, prediction: Any, *, labels: Labels | None = None) -> Array:
        """One loss a record, shape (n,).

        Args:
            y_true: True labels (n,).
            prediction: Probabilities (n, K), or (n,) of the second of two classes.
            labels: The class of each column; None for 0 ... K - 1.

        Raises:
            NotLossesError: For another outer shape, or another number of labels.
        """
        P, columns, known = _classified(y_true, prediction, labels)
        with np.errstate(all="ignore"):
            own = P[np.arange(len(P)), columns]
            loss = 0.5 * ((P * P).sum(1) - own * own + (1.0 - own) ** 2)
        return _where_finite(loss, known)


class Log:
    """Log loss, -ln of the probability that the model gave to the true label; no bound.

    A confident model that errs loses without end, so no C is natural: :data:`bounded_log` is
    nearly the same and has one. ``bound`` says what C means here.

    Example:
        >>> log([0, 1], [0.5, 1.0]).round(3).tolist()
        [0.693, 0.0]
        >>> round(log.bound(floor=1e-3), 3)
        6.908
    """

    def __call__(self, y_true: Any, prediction: Any, *, labels: Labels | None = None) -> Array:
        """One loss a record, shape (n,); probabilities below 2.2e-16 count as that.

        Args:
            y_true: True labels (n,).
            prediction: Probabilities (n, K), or (n,) of the second of two classes.
            labels: The class of each column; None for 0 ... K - 1.

        Raises:
            NotLossesError: For another outer shape, or another number of labels.
        """
        P, columns, known = _classified(y_true, prediction, labels)
        own = P[np.arange(len(P)), columns]
        with np.errstate(all="ignore"):
            return _where_finite(np.log(1.0 / np.clip(own, _TINY, 1.0)), known)

    def bound(self, floor: float = 1e-3) -> float:
        """C at which a probability below the floor counts as the floor: -ln(floor).

        Args:
            floor: In (0, 1).

        Raises:
            ValueError: For another floor.
        """
        _check_within("floor", floor, 1.0)
        return -math.log(floor)

    def settings(self, floor: float = 1e-3) -> LossSettings:
        """Keywords of a sampler, for a floor as in :meth:`bound`."""
        C = self.bound(floor)
        return {"loss_bound": C, "clipping_norm": _UNCLIPPED * C}


class BoundedLog(BoundedLoss):
    """Log loss of the probabilities mixed with a little of the uniform ones, scaled to [0, 1].

    With e the ``smoothing``, a label's probability p counts as q = (1 - e) p + e / K, and the loss
    is (ln q(1) - ln q) / (ln q(1) - ln q(0)): a smooth, strictly increasing function of -ln p.

    It changes the objective: where labels have the probabilities r, its mean is least not at r but
    at (r - e / K) / (1 - e) (at 0 where that is negative, and the others share the rest). That
    moves no probability by more than e / (1 - e).

    Example:
        >>> bounded_log([0, 1, 1], [0.0, 1.0, 0.0]).tolist()
        [0.0, 0.0, 1.0]
        >>> bounded_log.settings()
        {'loss_bound': 1.0, 'clipping_norm': 2.0}
    """

    def __call__(
        self,
        y_true: Any,
        prediction: Any,
        *,
        labels: Labels | None = None,
        smoothing: float = 2e-3,
    ) -> Array:
        """One loss a record, shape (n,), in [0, 1].

        Args:
            y_true: True labels (n,).
            prediction: Probabilities (n, K), or (n,) of the second of two classes.
            labels: The class of each column; None for 0 ... K - 1.
            smoothing: e in (0, 1), the same in all trials. Less is nearer to log loss and has
                heavier tails.

        Raises:
            NotLossesError: For another outer shape, or another number of labels.
            ValueError: For another smoothing.
        """
        _check_within("smoothing", smoothing, 1.0)
        P, columns, known = _classified(y_true, prediction, labels)
        least = smoothing / P.shape[1]
        best, worst = math.log(1.0 - smoothing + least), math.log(least)
        with np.errstate(all="ignore"):
            q = (1.0 - smoothing) * P[np.arange(len(P)), columns] + least
            loss = np.clip((best - np.log(q)) / (best - worst), 0.0, 1.0)
        return _where_finite(loss, known)


class RegressionLoss(abc.ABC):
    """A loss of targets and predictions on the real line; the public range gives its bound."""

    def __call__(self, y_true: Any, prediction: Any) -> Array:
        """One loss a record, shape (n,).

        Args:
            y_true: Targets (n,), or (n, 1).
            prediction: Predictions (n,), or (n, 1).

        Raises:
            NotLossesError: For another outer shape; a ValueError that quotes no value.
        """
        y, p = _flat("y_true", as_floats(y_true)), _flat("prediction", as_floats(prediction))
        _check_lengths(y, p)
        with np.errstate(all="ignore"):
            return _where_finite(self._of(y - p), True)

    @abc.abstractmethod
    def _of(self, residuals: Array) -> Array:
        """The loss of y - p."""

    @abc.abstractmethod
    def _largest(self, distance: float) -> float:
        """The largest loss at a distance."""

    def bound(self, y_low: float, y_high: float) -> float:
        """The largest loss where target and prediction lie in the target's public range.

        Args:
            y_low: Least target that anybody may have; from public knowledge, not from the data.
            y_high: Largest.

        Raises:
            ValueError: If they are no finite numbers in order.
        """
        _check_range(y_low, y_high)
        return self._largest(float(y_high) - float(y_low))

    def settings(
        self, y_low: float, y_high: float, *, spread: float | None = None
    ) -> LossSettings:
        """Keywords of a sampler, in the loss's own units.

        Args:
            y_low: As for :meth:`bound`.
            y_high: As for :meth:`bound`.
            spread: How far a target typically lies from the middle of them, > 0: public knowledge,
                or the standard deviation of the training targets where these are no secret.
                None for a quarter of the range, which is too wide where few targets come near
                its ends; then noise is larger than it needs to be.

        Raises:
            ValueError: For arguments outside their ranges.
        """
        _check_range(y_low, y_high)
        width = float(y_high) - float(y_low)
        unit = width / _FAR if spread is None else spread
        _check_within("spread", unit, math.inf)
        far = min(width, _FAR * unit)
        return {
            "loss_bound": self._largest(far),
            "clipping_norm": _UNCLIPPED * self._largest(unit),
        }


class Squared(RegressionLoss):
    """Squared error (y - p)².

    Example:
        >>> squared([1.0, 2.0], [1.5, 2.0]).tolist()
        [0.25, 0.0]
        >>> squared.bound(0, 10), squared.settings(0, 10, spread=1.5)
        (100.0, {'loss_bound': 36.0, 'clipping_norm': 4.5})
    """

    def _of(self, residuals: Array) -> Array:
        return np.asarray(residuals * residuals)

    def _largest(self, distance: float) -> float:
        return distance * distance


class Absolute(RegressionLoss):
    """Absolute error abs(y - p); its mean is least at the median.

    Example:
        >>> absolute([1.0, 2.0], [1.5, 2.0]).tolist(), absolute.bound(0, 10)
        ([0.5, 0.0], 10.0)
    """

    def _of(self, residuals: Array) -> Array:
        return np.asarray(np.abs(residuals))

    def _largest(self, distance: float) -> float:
        return distance


class Pinball(RegressionLoss):
    """Pinball loss of a quantile: q (y - p) above the prediction, (1 - q)(p - y) below.

    Args:
        q: The quantile that the model predicts, in (0, 1).

    Raises:
        ValueError: For another q.

    Example:
        >>> late = pinball(0.9)
        >>> late([1.0, 2.0], [0.0, 3.0]).round(3).tolist(), late.bound(0, 10)
        ([0.9, 0.1], 9.0)
    """

    def __init__(self, q: float) -> None:
        _check_within("q", q, 1.0)
        self.q = float(q)

    def _of(self, residuals: Array) -> Array:
        return np.asarray(np.maximum(self.q * residuals, (self.q - 1.0) * residuals))

    def _largest(self, distance: float) -> float:
        return max(self.q, 1.0 - self.q) * distance


zero_one = ZeroOne()
"""0-1 loss of predicted labels."""

weighted = Weighted
"""0-1 loss with a weight a class: ``weighted({"well": 0.5, "ill": 5.0})`` is a loss."""

brier = Brier()
"""Brier score of predicted probabilities, a proper score in [0, 1]."""

log = Log()
"""Log loss of predicted probabilities, without a bound."""

bounded_log = BoundedLog()
"""Log loss with a bound that hardly moves its minimiser: what to tune probabilities by."""

squared = Squared()
"""Squared error."""

absolute = Absolute()
"""Absolute error."""

pinball = Pinball
"""Pinball loss of a quantile: ``pinball(0.9)`` is a loss."""


# Persons ----------------------------------------------------------------------------------------


def by_group(
    losses: Any,
    ids: Any,
    per_group: str = "mean",
    bound: float | tuple[float, float] = 1.0,
    *,
    group_bound: float | None = None,
    maximize: bool = False,
) -> Array:
    """Makes one value a person of the losses of its rows, for an objective to return.

    Rows are clipped to [0, bound] first, so none of them counts for more; NaN and infinity are the
    worst. Entries stand in the order of the ids (numbers, then texts), however rows stand.
    Rows without an id count as one person together. Tell the sampler what an entry is:
    ``DPGIBOSampler(mu=1, unit="patient", record_ids=np.unique(ids))``, with ``loss_bound=`` the
    same bound (of sums, ``group_bound``).

    Args:
        losses: One value a row, shape (n_rows,).
        ids: Of each row's person, shape (n_rows,).
        per_group: "mean" of a person's rows, or their "sum", at most ``group_bound``.
        bound: C, or (low, high) of a mean.
        group_bound: The most that the rows of one person add up to; of a sum alone.
        maximize: Whether values are scores, of which the least is the worst.

    Returns:
        Shape (n_persons,).

    Raises:
        NotLossesError: For another number of losses than of ids; quotes neither.
        ValueError: If the ids are none, name one person alone, or the bounds make no sense.

    Example:
        >>> by_group([1.0, 0.0, 0.5], ["ann", "bob", "ann"]).tolist()
        [0.75, 0.0]
        >>> by_group([1.0, 0.0, 0.5], [7, 9, 7], "sum", group_bound=1.2).tolist()
        [1.2, 0.0]
    """
    rows = bound if isinstance(bound, tuple | list) else (0.0, bound)
    _check_range(*rows)
    unit = Unit.of_rows(PERSON, rows, per_group, group_bound)
    return Groups(ids).entries(losses, unit, rows[0] if maximize else rows[1])


# Models of torch --------------------------------------------------------------------------------


def per_record(loss: Callable[[Any, Any], Any], model: Any, loader: Any) -> Array:
    """Evaluates a torch model on each record of a loader; one loss a record, in the data's order.

    The model runs in eval mode, without gradients, where its first parameter lies. Afterwards each
    of its modules has its former mode again.

    Args:
        loss: A function of a batch's (output, target) with one value a record, such as
            ``torch.nn.CrossEntropyLoss(reduction="none")``, or, with a bound,
            ``lambda output, y: losses.bounded_log(y, output.softmax(1))``.
        model: A ``torch.nn.Module`` that scores each record by itself.
        loader: A ``DataLoader`` of pairs (input, target) that visits the data set in its order;
            or, in any order, of triples (input, target, number), where the data set itself gives
            each record's number in it, from 0 to n - 1.

    Raises:
        ValueError: If the loader leaves records out, or visits them in an order that is not known.
        NotLossesError: If there is not one loss a record; a ValueError that quotes no value.
    """
    device = next((parameter.device for parameter in model.parameters()), None)
    modes = [(module, module.training) for module in model.modules()]
    torch = sys.modules.get("torch")  # loaded by the module that has made the model
    placed, found = [np.empty(0)], [np.empty(0)]
    model.eval()
    try:
        with torch.no_grad() if torch else contextlib.nullcontext():
            for batch, known in zip(loader, _known_order(loader), strict=False):
                inputs, target, numbers = _parts(batch, known)
                values = as_floats(loss(model(_moved(inputs, device)), _moved(target, device)))
                placed.append(numbers)
                found.append(_one_a_record(values, len(numbers)))
    finally:
        for module, training in modes:
            module.training = training
    n = operator.length_hint(getattr(loader, "dataset", None), -1)
    places = np.concatenate(placed)
    if not np.array_equal(np.sort(places), np.arange(n)):
        raise ValueError(_ORDER)
    return np.asarray(np.concatenate(found)[np.argsort(places)])


def _parts(batch: Any, known: Any) -> tuple[Any, Any, NDArray[Any]]:
    """Input, target and the records' numbers, which a loader in the data's order need not give.

    Raises:
        ValueError: If the batch has other parts.
    """
    parts = [*batch] if isinstance(batch, list | tuple) else []
    if len(parts) == 2 and known is not None:
        parts.append(known)
    if len(parts) != 3:
        raise ValueError(_ORDER)
    return parts[0], parts[1], _flat("number", as_floats(parts[2]))


def _one_a_record(values: NDArray[Any] | None, n: int) -> Array:
    if values is None or values.ndim == 0 or len(_flat("loss", values)) != n:
        raise NotLossesError(
            'loss must give one value a record of each batch: torch\'s with reduction="none".'
        )
    return _flat("loss", values)


def _moved(given: Any, device: Any) -> Any:
    """Tensors, alone or in collections, on the model's device."""
    if isinstance(given, list | tuple):
        return [_moved(part, device) for part in given]
    if isinstance(given, Mapping) and not hasattr(given, "to"):
        return {name: _moved(part, device) for name, part in given.items()}
    return given.to(device) if hasattr(given, "to") else given


def _known_order(loader: Any) -> Iterable[Any]:
    """Returns each batch's numbers, if the loader is torch's and goes from first to last."""
    batches: Any = getattr(loader, "batch_sampler", None)
    kinds = [type(sampler) for sampler in (batches, getattr(batches, "sampler", None))]
    known = [f"{kind.__module__}.{kind.__name__}" for kind in kinds] == _IN_ORDER
    return batches if known and getattr(loader, "in_order", True) else itertools.repeat(None)


_ORDER = (
    "loader must give pairs (input, target) of all records in the data set's order: a DataLoader "
    "with shuffle=False, drop_last=False and in_order=True. In another order it must give triples "
    "(input, target, number), with each record's number in the data set, from 0 to n - 1, once."
)

_IN_ORDER = [f"torch.utils.data.sampler.{name}" for name in ("BatchSampler", "SequentialSampler")]


# What comes in ----------------------------------------------------------------------------------


def _flat(name: str, values: NDArray[Any] | None) -> NDArray[Any]:
    """One value a record, shape (n,).

    Raises:
        NotLossesError: If there are none, or several a record.
    """
    if values is None or values.ndim == 0 or values.size == 0:
        raise NotLossesError(
            f"{name} must be a non-empty array, list, series or tensor with one value a "
            "record, shape (n_records,); it is something else, or a single value."
        )
    if values.ndim == 2 and values.shape[1] == 1:
        return values[:, 0]
    if values.ndim != 1:
        raise NotLossesError(
            f"{name} must have one value a record, shape (n_records,), got an array of shape "
            f"{values.shape}. Of probabilities take the label, argmax(axis=1); of several outputs "
            "add up the losses."
        )
    return values


def _check_lengths(y: NDArray[Any], other: NDArray[Any], name: str = "prediction") -> None:
    if len(y) != len(other):
        raise NotLossesError(
            f"y_true and {name} must be of the same records: y_true has {len(y)} of them, "
            f"{name} {len(other)}."
        )


_EXACT: Mapping[str, type] = {"b": int, "i": int, "u": int, "U": str}
"""By kinds of arrays that NumPy compares with Python's own labels as Python does."""


def _classified(
    y_true: Any, prediction: Any, labels: Labels | None
) -> tuple[Array, NDArray[np.intp], NDArray[np.bool_]]:
    """Probabilities (n, K), the true label's column (n,), and where both are what they should be.

    Raises:
        NotLossesError: For another outer shape, or another number of labels.
    """
    known = None if labels is None else _flat("labels", as_labels(labels))
    P, y = _probabilities(prediction, known), _flat("y_true", as_labels(y_true))
    _check_lengths(y, P)
    columns = _columns(y, np.arange(P.shape[1]) if known is None else known)
    with np.errstate(all="ignore"):
        fine = ((P >= 0.0) & (P <= 1.0)).all(1) & (np.abs(P.sum(1) - 1.0) <= _SUM_TOLERANCE)
    return P, np.maximum(columns, 0), fine & (columns >= 0)


def _columns(y: NDArray[Any], known: NDArray[Any]) -> NDArray[np.intp]:
    """The column of each true label, -1 for one that is none of them; shape (n,)."""
    column = {label: place for place, label in enumerate(_said(known)) if label is not None}
    exact = _EXACT.get(y.dtype.kind)
    if exact is not None and all(isinstance(label, exact) for label in column):
        found = np.full(len(y), -1, dtype=np.intp)  # ten times as fast as entry by entry
        for label, place in column.items():
            found[y == label] = place
        return found
    return np.array([column.get(label, -1) for label in _said(y)], dtype=np.intp)


@np.errstate(all="ignore")  # a warning would tell that some record is odd
def _probabilities(prediction: Any, known: NDArray[Any] | None) -> Array:
    """Shape (n, K), from that, from rows in a list, or from the second class's probabilities.

    Raises:
        NotLossesError: For another outer shape, or another number of labels.
    """
    K = 2 if known is None else len(known)
    rows, P = as_rows(prediction, K), as_floats(prediction)
    if P is None or P.ndim != 2 or P.shape[1] < 2 or not P.size:
        p = _flat("prediction", P)
        P = np.stack([1.0 - p, p], axis=1)
        if rows is not None and rows.shape == (len(p), K):  # a list's
            P = np.where(np.isnan(P), rows, P) if K == 2 else rows
    if known is not None and P.shape[1] != K:
        raise NotLossesError(
            f"labels must name the class of each of the {P.shape[1]} columns of prediction, as "
            f"classifier.classes_ does; got {K}."
        )
    return P


def _differences(a: NDArray[Any], b: NDArray[Any]) -> Array:
    """1 where labels differ, 0 where they are the same, NaN where one is missing; (n,)."""
    pairs = zip(_said(a), _said(b), strict=True)
    return np.array([math.nan if None in pair else pair[0] != pair[1] for pair in pairs], float)


def _said(labels: NDArray[Any]) -> list[Any]:
    """Reads labels as what they say; None where one is missing."""
    plain = _plain(labels)
    said = {label: as_said(label) for label in set(plain)}  # each once: most are alike
    return [said[label] for label in plain]


def _plain(labels: NDArray[Any]) -> list[Any]:
    """Numbers and texts of Python's own; None where a label is missing."""
    listed: list[Any] = labels.tolist()
    if labels.dtype.kind != "f":
        return listed
    return [label if math.isfinite(label) else None for label in listed]


def _where_finite(loss: Array, known: NDArray[np.bool_] | bool) -> Array:
    return np.asarray(np.where(np.isfinite(loss) & known, loss, math.nan))


def _check_within(name: str, value: Any, end: float) -> None:
    if not (is_finite(value) and 0.0 < value < end):
        raise ValueError(f"{name} must be a number in (0, {end:g}), got {value!r}.")


def _check_range(y_low: Any, y_high: Any) -> None:
    if not is_range((y_low, y_high)):
        raise ValueError(
            f"The target's public range needs finite y_low < y_high, got {y_low!r} and {y_high!r}."
        )
