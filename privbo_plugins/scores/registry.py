"""Scores by the names that scikit-learn gives them; on exact means they equal its functions.

``named("f1")`` has the usual settings (labels 0 and 1), ``f1(labels=("no", "yes"))`` others. What
is public, and never taken from protected data: labels, groups, prevalence, the target's range.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privbo_plugins import losses
from privbo_plugins.foreign import answer
from privbo_plugins.scores.score import Score, _described, ratio
from privbo_plugins.scores.statistics import Bins, Cells, Losses, Moments, Pairs
from privbo_plugins.settings import POSITIVE

Array = NDArray[np.float64]
Labels = Sequence[Any]
Numbers = Any
"""A number, or of means of shape (k, B) an array of B; of several classes, one row each."""
Classes = Any
"""The place of a class, or an array of places."""

_BINARY = (0, 1)

_score = partial(Score, vectorized=True)
"""A registered score: its function takes several columns of means at once."""


# Cells of the confusion matrix ------------------------------------------------------------------


def _square(m: Array) -> Array:
    K = math.isqrt(len(m))
    return m[: K * K].reshape(K, K, *m.shape[1:])


def _over(axis: int, i: Classes, m: Array, s: Array) -> Numbers:
    """Correct ones of class i over its column (precision: axis 0) or its row (recall)."""
    return ratio(lambda at: _square(at)[i, i], lambda at: _square(at).sum(axis=axis)[i], m, s)


_precision, _recall = partial(_over, 0), partial(_over, 1)


def _f_beta(beta: float, i: Classes, m: Array, s: Array) -> Numbers:
    """(1 + b²) tp / (b² (tp + fn) + tp + fp)."""

    def below(at: Array) -> Numbers:
        C = _square(at)
        return beta**2 * C.sum(axis=1)[i] + C.sum(axis=0)[i]

    return ratio(lambda at: (1 + beta**2) * _square(at)[i, i], below, m, s)


def _macro(of_class: Callable[..., Numbers], K: int, m: Array, s: Array) -> Numbers:
    return of_class(np.arange(K), m, s).mean(axis=0)


def _dot(a: Array, b: Array) -> Numbers:
    """Inner products of columns."""
    return (a * b).sum(axis=0)


def _chance(m: Array) -> Numbers:
    """t·p, the share that is correct by chance; t and p the shares of true and predicted ones."""
    return _dot(_square(m).sum(axis=1), _square(m).sum(axis=0))


def _beyond_chance(m: Array) -> Numbers:
    """The share c of correct ones less that, c - t·p."""
    return np.trace(_square(m)) - _chance(m)


def _matthews(m: Array, s: Array) -> Numbers:
    """(c - t·p) / sqrt((1 - t·t)(1 - p·p))."""

    def below(at: Array) -> Numbers:
        t, p = _square(at).sum(axis=1), _square(at).sum(axis=0)
        return (1.0 - _dot(t, t)) * (1.0 - _dot(p, p))

    return _beyond_chance(m) * np.sqrt(ratio(lambda _: 1.0, below, m, s))


def _kappa(m: Array, s: Array) -> Numbers:
    """(c - t·p) / (1 - t·p)."""
    return ratio(_beyond_chance, lambda at: 1.0 - _chance(at), m, s)


def _cost(costs: Array, m: Array, s: Array) -> Numbers:  # noqa: ARG001
    return np.tensordot(costs, _square(m), 2)


def _place(labels: Labels, positive: Any) -> int:
    chosen = labels[-1] if positive is None else positive
    if len(labels) < 2 or len({*labels}) < len(labels) or chosen not in labels:
        raise ValueError(
            f"labels must list two classes at least, each once, and positive= one of them; got "
            f"{tuple(labels)!r} and {positive!r}."
        )
    return list(labels).index(chosen)


def _checked(labels: Labels) -> tuple[Any, ...]:
    _place(labels, None)
    return tuple(labels)


def accuracy(labels: Labels = _BINARY) -> Score:
    """Share of correct predictions."""
    return _score("accuracy", Cells(_checked(labels)), partial(_cost, np.eye(len(labels))))


def balanced_accuracy(labels: Labels = _BINARY) -> Score:
    """Mean recall of the classes."""
    return _averaged("balanced_accuracy", _recall, labels)


def _averaged(name: str, of_class: Callable[..., Numbers], labels: Labels) -> Score:
    return _score(name, Cells(_checked(labels)), partial(_macro, of_class, len(labels)))


def _of_one(name: str, of_class: Callable[..., Numbers], labels: Labels, positive: Any) -> Score:
    i = _place(labels, positive)
    own = Cells(tuple(labels)), partial(of_class, i)
    return _score(name, *own, positive=repr(_described(labels[i])))


def precision(labels: Labels = _BINARY, positive: Any = None) -> Score:
    """Share of positives among those that are taken for positive; the last label by default."""
    return _of_one("precision", _precision, labels, positive)


def recall(labels: Labels = _BINARY, positive: Any = None) -> Score:
    """Share of positives that are found."""
    return _of_one("recall", _recall, labels, positive)


def f_beta(beta: float = 1.0, labels: Labels = _BINARY, positive: Any = None) -> Score:
    """Weighted harmonic mean of precision and recall; beta > 1 weighs recall more."""
    POSITIVE.check("beta", beta)
    return _of_one(f"f{beta:g}", partial(_f_beta, beta), labels, positive)


def f1(labels: Labels = _BINARY, positive: Any = None) -> Score:
    """Harmonic mean of precision and recall."""
    return f_beta(1.0, labels, positive)


def precision_macro(labels: Labels = _BINARY) -> Score:
    """Mean precision of the classes."""
    return _averaged("precision_macro", _precision, labels)


def recall_macro(labels: Labels = _BINARY) -> Score:
    """Mean recall of the classes."""
    return _averaged("recall_macro", _recall, labels)


def f1_macro(labels: Labels = _BINARY) -> Score:
    """Mean F1 of the classes."""
    return _averaged("f1_macro", partial(_f_beta, 1.0), labels)


def matthews_corrcoef(labels: Labels = _BINARY) -> Score:
    """Matthews correlation of true and predicted classes."""
    return _score("matthews_corrcoef", Cells(_checked(labels)), _matthews, -1.0)


def cohen_kappa(labels: Labels = _BINARY) -> Score:
    """Agreement beyond chance."""
    return _score("cohen_kappa", Cells(_checked(labels)), _kappa, -1.0)


def cost(costs: Sequence[Sequence[float]], labels: Labels = _BINARY) -> Score:
    """Mean cost of errors.

    Args:
        costs: Row i, column j: of a record of class i that is taken for class j; public.
        labels: The classes.
    """
    cells, table = Cells(_checked(labels)), np.array(costs, dtype=float)
    if table.shape != (len(labels),) * 2 or not np.isfinite(table).all() or np.ptp(table) == 0:
        raise ValueError(
            f"costs must be a table of {len(labels)} x {len(labels)} finite numbers that differ."
        )
    ends = float(table.min()), float(table.max())
    return _score("cost", cells, partial(_cost, table), *ends, greater_is_better=False)


# Probabilities and ranks ------------------------------------------------------------------------


def _pairs(prevalence: float | None, m: Array, s: Array) -> Numbers:
    if prevalence is not None:
        return m[0] / (prevalence * (1.0 - prevalence))
    return ratio(lambda at: at[0], lambda at: at[1] * (1.0 - at[1]), m, s)


def roc_auc(prevalence: float | None = None, labels: Labels = _BINARY) -> Score:
    """Area under the receiver operating characteristic of two classes.

    Args:
        prevalence: Share of positives, public: then noise is 1 / (n mu p (1 - p)). None releases
            it beside the pairs.
        labels: Both classes; the second is positive.
    """
    if prevalence is not None and not 0.0 < prevalence < 1.0:
        raise ValueError(f"prevalence must lie in (0, 1), got {prevalence!r}.")
    return _score("roc_auc", Pairs(_two(labels), prevalence), partial(_pairs, prevalence))


def _two(labels: Labels) -> tuple[Any, Any]:
    _checked(labels)
    if len(labels) != 2:
        raise ValueError(f"labels must be two classes, the second positive; got {len(labels)}.")
    return labels[0], labels[1]


def _negated(bound: float, m: Array, s: Array) -> Numbers:  # noqa: ARG001
    return -bound * m[0]


def neg_brier_score(labels: Labels = _BINARY) -> Score:
    """Half the squared distance of probabilities from the label, negated."""
    own = Losses(losses.brier, 1.0, _checked(labels))
    return _score("neg_brier_score", own, partial(_negated, 1.0), -1.0, 0.0)


def neg_log_loss(labels: Labels = _BINARY, floor: float = 1e-3) -> Score:
    """Log loss, negated; probabilities below ``floor`` count as it."""
    bound = losses.log.bound(floor)
    own = Losses(losses.log, bound, _checked(labels))
    return _score("neg_log_loss", own, partial(_negated, bound), -bound, 0.0)


def _calibration(m: Array, s: Array) -> Numbers:
    """Sum over bins of abs(mean of p - y), each without what noise adds to its square."""
    return np.sqrt(np.maximum(m * m - s * s, 0.0)).sum(axis=0)


def expected_calibration_error(labels: Labels = _BINARY, n_bins: int = 10) -> Score:
    """Mean distance of probabilities from frequencies, by bins of equal width."""
    if not (isinstance(n_bins, int) and 2 <= n_bins <= 100):
        raise ValueError(f"n_bins must be an integer from 2 to 100, got {n_bins!r}.")
    own = Bins(_two(labels), n_bins)
    return _score("expected_calibration_error", own, _calibration, greater_is_better=False)


# Numbers ----------------------------------------------------------------------------------------


def _of_variance(explained: bool, m: Array, s: Array) -> Numbers:
    """1 - Var(e) / Var(y), or with e² in place of Var(e); units of the range cancel but for 4."""
    above = m[0] - (m[3] ** 2 if explained else 0.0)
    return 1.0 - 4.0 * ratio(lambda _: above, lambda at: at[2] - at[1] ** 2, m, s)


def r2(y_low: float, y_high: float) -> Score:
    """Coefficient of determination; below -1 it counts as -1.

    Args:
        y_low: Least target that anybody may have; public. Targets and predictions beyond count as
            the ends.
        y_high: Largest.
    """
    return _score("r2", Moments(y_low, y_high), partial(_of_variance, False), -1.0)


def explained_variance(y_low: float, y_high: float) -> Score:
    """As :func:`r2`, without what the mean error costs."""
    own = Moments(y_low, y_high, mean_error=True)
    return _score("explained_variance", own, partial(_of_variance, True), -1.0)


def _negated_root(bound: float, m: Array, s: Array) -> Numbers:  # noqa: ARG001
    return -np.sqrt(np.maximum(bound * m[0], 0.0))


def neg_mean_absolute_error(y_low: float, y_high: float) -> Score:
    """Mean absolute error, negated; errors beyond the target's range count as its width."""
    bound = losses.absolute.bound(y_low, y_high)
    own = Losses(losses.absolute, bound)
    return _score("neg_mean_absolute_error", own, partial(_negated, bound), -bound, 0.0)


def neg_root_mean_squared_error(y_low: float, y_high: float) -> Score:
    """Root of the mean squared error, negated."""
    bound = losses.squared.bound(y_low, y_high)
    return _score(
        "neg_root_mean_squared_error", Losses(losses.squared, bound),
        partial(_negated_root, bound), -math.sqrt(bound), 0.0,
    )  # fmt: skip


def _over_baseline(m: Array, s: Array) -> Numbers:
    return 1.0 - ratio(lambda at: at[0], lambda at: at[1], m, s)


def d2_pinball_score(
    y_low: float, y_high: float, alpha: float = 0.5, baseline: float | None = None
) -> Score:
    """Share of the pinball loss of a public constant that a model saves; below -1 it is -1.

    scikit-learn compares with the quantile of the targets, which is no mean of records.

    Args:
        y_low: As for :func:`r2`.
        y_high: As for :func:`r2`.
        alpha: The quantile, in (0, 1).
        baseline: The constant; None for the middle of the range.
    """
    loss, constant = losses.pinball(alpha), (y_low + y_high) / 2 if baseline is None else baseline
    own = Losses(loss, loss.bound(y_low, y_high), baseline=float(constant))
    return _score("d2_pinball_score", own, _over_baseline, -1.0)


def d2_absolute_error_score(y_low: float, y_high: float, baseline: float | None = None) -> Score:
    """As :func:`d2_pinball_score` of the median: of the absolute error."""
    name = "d2_absolute_error_score"
    return d2_pinball_score(y_low, y_high, baseline=baseline).called(name)


# Gaps between groups ----------------------------------------------------------------------------


def _gap(of: str, m: Array, s: Array) -> Numbers:
    """Largest less smallest rate of the groups: of positive predictions, or of positives found."""

    def cells(at: Array) -> Array:
        of_groups = at[:-1].reshape(-1, 4, *at.shape[1:])
        return of_groups[:, 2:] if of == "found" else of_groups  # of positive records alone

    rates = ratio(
        lambda at: cells(at)[:, 1::2].sum(axis=1), lambda at: cells(at).sum(axis=1), m, s
    )
    return np.ptp(rates, axis=0)


def demographic_parity_difference(groups: Labels, labels: Labels = _BINARY) -> Score:
    """Compares the rates of positive predictions of public groups: largest less smallest."""
    return _gaps("demographic_parity_difference", "taken", groups, labels)


def equal_opportunity_difference(groups: Labels, labels: Labels = _BINARY) -> Score:
    """Compares the recalls of public groups: largest less smallest."""
    return _gaps("equal_opportunity_difference", "found", groups, labels)


def _gaps(name: str, of: str, groups: Labels, labels: Labels) -> Score:
    if len({*groups}) < max(len(groups), 2):
        raise ValueError(f"groups must list two groups at least, each once; got {groups!r}.")
    own, more = Cells(_two(labels), tuple(groups)), {"greater_is_better": False}
    return _score(name, own, partial(_gap, of), positive=repr(_described(labels[1])), **more)


# By name ----------------------------------------------------------------------------------------


_ALL: Sequence[Callable[..., Score]] = (
    accuracy, balanced_accuracy, precision, recall, f1, f_beta, precision_macro, recall_macro,
    f1_macro, matthews_corrcoef, cohen_kappa, cost, roc_auc, neg_brier_score, neg_log_loss,
    expected_calibration_error, r2, explained_variance, neg_mean_absolute_error,
    neg_root_mean_squared_error, d2_pinball_score, d2_absolute_error_score,
    demographic_parity_difference, equal_opportunity_difference,
)  # fmt: skip

SCORES: Mapping[str, Callable[..., Score]] = {make.__name__: make for make in _ALL}
"""All registered scores; some need settings."""

NEAR = {
    "average_precision": "roc_auc, or f1 at a threshold",
    "max_error": "neg_root_mean_squared_error",
    "neg_median_absolute_error": "neg_mean_absolute_error",
    "top_k_accuracy": "accuracy",
    "roc_auc_ovr": "balanced_accuracy, or neg_brier_score",
    "roc_auc_ovo": "balanced_accuracy, or neg_brier_score",
    "neg_mean_absolute_percentage_error": "neg_mean_absolute_error",
}
"""Scores that one record may move without a useful bound, and what is near."""


def named(name: str) -> Score:
    """The registered score of a name, with its usual settings.

    Raises:
        ValueError: If there is none, or it needs settings that nothing but public knowledge gives.

    Example:
        >>> named("f1").name, named("roc_auc").statistic.k
        ('f1', 2)
    """
    if name in NEAR:
        raise ValueError(
            f"{name!r} is no bounded function of means: one record may move it without a useful "
            f"bound. Near to it is {NEAR[name]}."
        )
    if name not in SCORES:
        told = answer("scores", name.lower(), SCORES)
        raise ValueError(f"There is no score {name!r} among {', '.join(SCORES)}{told}")
    known = inspect.signature(SCORES[name]).parameters.values()
    if needed := [one.name for one in known if one.default is one.empty]:
        raise ValueError(
            f"{name!r} needs settings that are public, as the target's range or the groups: "
            f"give scores.{name}({', '.join(needed)}) in place of its name."
        )
    return SCORES[name]()
