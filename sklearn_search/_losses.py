"""What a search's ``loss`` means: a function of one record, its bounds, what it is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sklearn.base import is_classifier

from privbo_plugins import losses

NAMED: Mapping[str, Any] = {
    "zero_one": losses.zero_one,
    "brier": losses.brier,
    "bounded_log": losses.bounded_log,
    "log": losses.log,
    "squared": losses.squared,
    "absolute": losses.absolute,
}

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

    @property
    def speaks_of_shapes(self) -> bool:
        """Checks whether what it refuses is told in words that quote no record."""
        return type(self.of).__module__ == losses.__name__  # no subclass from elsewhere


def to_loss(given: Any, estimator: Any) -> RecordLoss:
    """The loss that a search's settings name.

    Args:
        given: The settings.
        estimator: What is tuned.

    Raises:
        ValueError: If there is no such loss, or the estimator cannot predict what it takes.
    """
    function = _function(given.loss, estimator)
    of_probabilities = isinstance(function, _OF_PROBABILITIES)
    response = given.response_method or ("predict_proba" if of_probabilities else "predict")
    if not hasattr(estimator, response):
        raise ValueError(
            f"The loss needs {response}, which {type(estimator).__name__} has not as it is set. "
            "Take another loss (loss='zero_one' takes labels, loss='squared' predictions), name "
            "what it takes in response_method=, or set the estimator up for it."
        )
    return RecordLoss(function, response, of_probabilities)


def _function(loss: Any, estimator: Any) -> Callable[..., Any]:
    if loss is None and is_classifier(estimator):
        return losses.zero_one
    if isinstance(loss, str) and loss in NAMED:
        return NAMED[loss]  # type: ignore[no-any-return]
    if callable(loss) and not isinstance(loss, type):
        return loss  # type: ignore[no-any-return]
    raise ValueError(
        f"loss must be one of {', '.join(NAMED)}, privbo_plugins.losses.pinball(q), or a function "
        "of (y_true, prediction) that returns one loss for each record; None is zero_one for a "
        f"classifier. Got {loss!r} for {type(estimator).__name__}."
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
