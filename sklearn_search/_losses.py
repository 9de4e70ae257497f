"""What a search's ``loss`` means: a function of one record, its bounds, what it is told."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import is_classifier

from privbo_plugins import losses
from privbo_plugins.convert import as_labels, as_losses
from privbo_plugins.errors import UtilityWarning, warn
from privbo_plugins.foreign import answer, words
from privbo_plugins.scores import SCORES

NAMED: Mapping[str, Any] = {
    "zero_one": losses.zero_one,
    "brier": losses.brier,
    "bounded_log": losses.bounded_log,
    "log": losses.log,
    "squared": losses.squared,
    "absolute": losses.absolute,
    "balanced": losses.weighted,
}

SCORED: Mapping[str, str] = {
    word: entry["loss"] for word, entry in words("scores").items() if "loss" in entry
}
"""The loss that each of scikit-learn's names of scores stands for."""

_RARE = 2.0
"""A class that would have to weigh more than this, to count like the others, is rare."""

_FEWEST = 10
"""Records, or persons, of a block below which no number of blocks is advised."""

_OF_PROBABILITIES = (losses.Brier, losses.BoundedLog, losses.Log)
_WITH_BOUNDS = (losses.BoundedLoss, losses.Log)


@dataclass(frozen=True)
class RecordLoss:
    """A loss of each record, and what it is a loss of.

    Attributes:
        of: From (y_true, prediction) to one loss a record.
        response: The estimator's method that predicts.
        labelled: Whether the loss is told the class of each column.
    """

    of: Any
    response: str
    labelled: bool

    def predicted(self, model: Any, X: Any) -> Any:
        """Returns the predictions that the loss gets for the records."""
        return getattr(model, self.response)(X)

    def __call__(self, model: Any, y: Any, prediction: Any) -> Any:
        """One loss a record, shape (n,)."""
        classes = getattr(model, "classes_", None) if self.labelled else None
        more = {} if classes is None else {"labels": classes}
        return self.of(y, prediction, **more)

    sign = -1.0  # a loss is minimised

    def nothing(self, n: int, loss: float = math.nan) -> Any:
        """The losses of records that no model predicts: the worst, or a given one."""
        return np.full(n, loss)

    def known_alone(self, told: Any, known: Any) -> Any:
        """The losses of the records that a model predicts, and NaN of the others."""
        return np.where(known, as_losses(told), math.nan)

    @property
    def speaks_of_shapes(self) -> bool:
        """Checks whether what it refuses is told in words that quote no record."""
        kind = type(self.of)  # and no other one that calls itself so
        return vars(losses).get(kind.__name__) is kind


def to_loss(given: Any, estimator: Any, y: Any) -> RecordLoss:
    """The loss that a search's settings name.

    Args:
        given: The settings.
        estimator: What is tuned.
        y: Targets of the training records, whose classes have the weights of "balanced".

    Raises:
        ValueError: If there is no such loss, or the estimator cannot predict what it takes.
    """
    function = _function(_named_loss(given), estimator)
    if function is losses.weighted:
        if not is_classifier(estimator) or given.training_mu is not None:
            raise ValueError(
                "loss='balanced' weighs classes by training labels, which regressors have not and "
                "training_mu= protects: take privbo_plugins.losses.weighted({label: weight})."
            )
        function = losses.weighted(class_weights(y))
    of_probabilities = isinstance(function, _OF_PROBABILITIES)
    response = given.response_method or ("predict_proba" if of_probabilities else "predict")
    if not hasattr(estimator, response):
        raise ValueError(
            f"The loss needs {response}, which {type(estimator).__name__} has not as it is set. "
            "Take another loss (loss='zero_one' takes labels, loss='squared' predictions), name "
            "what it takes in response_method=, or set the estimator up for it."
        )
    return RecordLoss(function, response, of_probabilities)


def own_copy(scored: Any) -> Any:
    """Copies what scores records: what it keeps of them, the user's own object does not.

    Raises:
        ValueError: If it cannot be copied.
    """
    try:
        return copy.deepcopy(scored)
    except Exception:
        raise ValueError(
            "A scorer, score or loss is copied, so that it shows no record, and this one cannot "
            "be: give a function, or an object that copy.deepcopy takes. Nothing was charged."
        ) from None


def _named_loss(given: Any) -> Any:
    """``loss``, or what ``scoring`` stands for."""
    if given.scoring is None:
        return given.loss
    if given.scoring in SCORED:
        return SCORED[given.scoring]
    known = dict.fromkeys([*SCORED, *SCORES])
    told = answer("scores", given.scoring, known)
    raise ValueError(f"scoring={given.scoring!r} is none of {', '.join(known)}{told}")


def class_weights(y: Any) -> dict[Any, float]:
    """Weights with which each class of the training records counts alike: n / (K n_c)."""
    labels = as_labels(y)
    counts = Counter([] if labels is None or labels.ndim != 1 else labels.tolist())
    return {label: counts.total() / (len(counts) * n) for label, n in counts.items()}


def warn_of_rare_class(given: Any, estimator: Any, y: Any) -> None:
    """Says what the default loss makes of a class that few training records have.

    Where ``training_mu`` protects them, it is silent.
    """
    default = given.loss is None and given.scoring is None and is_classifier(estimator)
    default = default and given.protect == "validation"
    weights = class_weights(y) if default and given.training_mu is None else {}
    largest = max(weights.values(), default=0.0)
    if largest > _RARE:
        text = (
            f"{100 / (len(weights) * largest):.2g} % of the training records have the rarest "
            "class. The default loss counts errors, and a model that never predicts this class "
            f"makes few. loss='balanced' lets classes count alike, with {largest:.3g} times the "
            "noise; loss='brier' tunes probabilities; loss='zero_one' ends this warning."
        )
        warn(text, UtilityWarning)


def warn_of_noise(
    loss: RecordLoss, y_range: Any, noise: float, most: float = math.inf,
    blocks: tuple[int, int, Callable[[int], float]] | None = None,
) -> None:  # fmt: skip
    """Warns where the noise of a released value hides losses that lie far below their bound.

    Args:
        loss: What is released.
        y_range: The target's public range, if it was given.
        noise: Standard deviation.
        most: Width of the range of a block's score.
        blocks: Their number, that of all records, and the noise by a number of blocks, where
            entries are scores of blocks.
    """
    least, less = most / 2, "more validation records, a larger budget or fewer trials"
    if isinstance(loss.of, losses.ZeroOne):
        least = 0.5
    elif isinstance(loss.of, losses.Log):
        least, less = math.log(2.0), "loss='bounded_log' or loss='brier', which are bounded by 1"
    elif isinstance(loss.of, losses.RegressionLoss) and y_range is not None:
        least = loss.of.bound(0.0, (y_range[1] - y_range[0]) / 4)
        less = "loss='absolute', or y_spread= below the range"
    if noise > least / 2:
        if blocks is not None:
            less = _with_less_noise(least / 2, *blocks)
        text = (
            f"The noise of a released value has a standard deviation of {noise:.2g}, and a mere "
            f"guess loses some {least:.2g}: it hides which model is better. What helps: {less}."
        )
        warn(text, UtilityWarning)


def _with_less_noise(most: float, K: int, n: int, noise_of: Callable[[int], float]) -> str:
    """Says how many blocks of n records have this much noise at most, or what else helps."""
    wanted = K
    while wanted * _FEWEST <= n and (noise := noise_of(wanted)) > most:
        wanted = max(wanted + 1, math.ceil(min(wanted * noise / most, n)))
    if wanted * _FEWEST <= n:
        return (
            f"n_blocks={wanted} in place of {K}, if blocks of {n // wanted} do; more records, a "
            "larger budget or fewer trials"
        )
    return (
        'a loss with protect="validation" (and groups= of persons), more records, a larger budget '
        f"or fewer trials; for enough blocks of {_FEWEST} or more, {n} are too few"
    )


def _function(loss: Any, estimator: Any) -> Callable[..., Any]:
    if loss is None and is_classifier(estimator):
        return losses.zero_one
    if isinstance(loss, str) and loss in NAMED:
        return NAMED[loss]  # type: ignore[no-any-return]
    if callable(loss) and not isinstance(loss, type):
        return loss  # type: ignore[no-any-return]
    if loss is None:
        raise ValueError(
            f"{type(estimator).__name__} is no classifier: say what is minimised, loss='absolute' "
            "or loss='squared' with the target's public y_range=(low, high), or a function of "
            "(y_true, prediction) with loss_bound=."
        )
    raise ValueError(
        f"loss must be one of {', '.join(NAMED)}, privbo_plugins.losses.pinball(q), or a function "
        "of (y_true, prediction) that returns one loss for each record; scoring= takes "
        f"scikit-learn's names. Got {loss!r} for {type(estimator).__name__}."
    )


def bounds_of(given: Any, loss: RecordLoss) -> dict[str, Any]:
    """``loss_bound``, and ``clipping_norm`` where the loss has one of its own.

    Raises:
        ValueError: If nothing says how large a loss may be.
    """
    ranged = isinstance(loss.of, losses.RegressionLoss) and given.loss_bound is None
    idle = given.y_range if given.y_spread is None else given.y_spread
    if idle is not None and not (ranged and given.y_range is not None):
        raise ValueError(
            "y_range= and y_spread= say how large squared, absolute and pinball losses may be: "
            "give y_range= with y_spread=, and neither with another loss or with loss_bound=."
        )
    found: dict[str, Any] = {}
    if ranged and given.y_range is not None:
        found |= loss.of.settings(*given.y_range, spread=given.y_spread)
    elif given.loss_bound is None and isinstance(loss.of, _WITH_BOUNDS):
        found |= loss.of.settings()
    told = {"loss_bound": given.loss_bound, "clipping_norm": given.clipping_norm}
    found |= {name: value for name, value in told.items() if value is not None}
    if "loss_bound" not in found:
        raise ValueError(
            "How large a loss may be must be said, from public knowledge and never from the data: "
            "y_range=(low, high) of the target for squared, absolute and pinball, or loss_bound= "
            "for any loss. Larger losses count as the bound."
        )
    return found
