"""Scores of a search that are no mean of one loss: what ``scoring`` names, and what they take."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import is_classifier, is_regressor
from sklearn.metrics import get_scorer_names

from privbo_plugins.convert import as_labels
from privbo_plugins.scores import SCORES, PerRecord, Predictions, Score, predictions
from privbo_plugins.scores import named as registered
from privbo_plugins.scores.score import rows_of, statistics_of
from sklearn_search._losses import SCORED
from sklearn_search._types import as_in_training


def scores_in(given: Any) -> list[tuple[str, Any]]:
    """Names and scores that ``scoring`` lists, ``refit``'s first; none where it names a loss.

    Raises:
        ValueError: If ``loss`` is given, too, or ``refit`` names none of several.
    """
    if given.loss is not None and given.scoring is not None:
        raise ValueError("Give loss= or scoring=, not both: each says what is optimised.")
    found, names = _listed(given.scoring)
    if isinstance(given.refit, str) and len(found) < 2 and given.refit not in names:
        raise ValueError(
            f"refit must be True or False where one loss or score is optimised, got "
            f"{given.refit!r}."
        )
    if len(found) > 1 and given.refit not in names:
        raise ValueError(
            f"scoring= lists several scores: say by which one parameters are chosen, refit= one "
            f"of {', '.join(map(repr, names))}; got {given.refit!r}."
        )
    pairs = list(zip(names, found, strict=True))
    return sorted(pairs, key=lambda pair: len(pairs) > 1 and pair[0] != given.refit)


def _listed(scoring: Any) -> tuple[list[Any], list[str]]:
    """Scores, and the names that ``refit`` may have for them."""
    if isinstance(scoring, Mapping):
        return [*scoring.values()], [*map(str, scoring)]
    named = isinstance(scoring, str) and scoring in SCORES and scoring not in SCORED
    alone = named or isinstance(scoring, Score)
    listed = [scoring] if alone else scoring if isinstance(scoring, list | tuple) else []
    return [*listed], [str(getattr(one, "name", one)) for one in listed]


def _called(name: str, one: Any, given: Any, estimator: Any, y: Any) -> Score:
    """A score under the name that a search has for it.

    Raises:
        ValueError: If there is none, or if it is of other classes than those that train.
    """
    own = one if isinstance(one, Score) else _made(one, given, estimator, y)
    labels = getattr(own.statistic, "labels", None)
    classes = () if given.training_mu is not None or not is_classifier(estimator) else _classes(y)
    own = _typed(own, classes)
    if labels is not None and not {*classes} <= {*getattr(own.statistic, "labels", ())}:
        raise ValueError(
            f"The score {name!r} is of labels={labels!r}, and the classes that train are others. "
            "These are not named, as they come from records: compare np.unique(y), and give "
            "labels= all of them, as in scores.f1(labels=(...), positive=...) of privbo_plugins."
        )
    return own if own.name == name else own.called(name)


def _typed(score: Score, classes: Sequence[Any]) -> Score:
    """The score with labels of the classes that train, where texts of numbers are numbers."""
    labels: Any = getattr(score.statistic, "labels", None)
    if labels is None or not len(classes):
        return score
    given = np.fromiter(labels, dtype=object, count=len(labels))
    typed = as_in_training(np.array(classes), given, labels=True).tolist()
    if {*typed} != {*classes}:
        return score
    made = copy.copy(score)
    statistic: Any = made.statistic
    object.__setattr__(made, "statistic", replace(statistic, labels=tuple(typed)))
    return made


def to_scores(given: Any, estimator: Any, y: Any) -> RecordScores | None:
    """The scores that a search's settings name; None where they name a loss.

    Args:
        given: The settings.
        estimator: What is tuned.
        y: Targets of the training records, whose classes are the labels of scores by name.

    Raises:
        ValueError: If there is no such score, or nothing public says its settings.
    """
    listed = scores_in(given)
    if not listed:
        return None
    found = RecordScores([_called(*one, given, estimator, y) for one in listed])
    found.check(estimator)
    return found


def last_score(given: Any, estimator: Any, y: Any) -> RecordScores | None:
    """Makes what ``final_score`` takes; None without one.

    Raises:
        ValueError: As :func:`to_scores`, or if ``final_share`` is given alone, or is nothing.
    """
    if given.final_score is None:
        if given.final_share is not None:
            raise ValueError("final_share= is kept for final_score='roc_auc', say: give both.")
        return None
    if given.final_share == 0:
        raise ValueError("final_share=0 keeps nothing for final_score=: give 0.1, say.")
    (listed, names), one = _listed(given.scoring), given.final_score
    name = getattr(one, "name", one)
    one = listed[names.index(one)] if one in names else one
    found = RecordScores([_called(name, one, given, estimator, y)])
    found.check(estimator)
    return found


def to_scorer(scoring: Any, refit: Any) -> Any:
    """Finds the score that parameters are chosen by, as scikit-learn takes one.

    Raises:
        ValueError: If scikit-learn knows no such name.
    """
    if callable(scoring) or scoring is None:
        return scoring
    found, names = _listed(scoring)
    listed = found[names.index(refit) if refit in names else 0] if found else scoring
    if isinstance(listed, Score):
        return RecordScores([listed]).exact
    if listed not in get_scorer_names():
        raise ValueError(
            f"score(X, y) is computed by scikit-learn, which knows no {listed!r}: compute it of "
            "predict(X)."
        )
    return listed


def _made(name: str, given: Any, estimator: Any, y: Any) -> Score:
    """A registered score, with the classes or the public range of this search.

    Raises:
        ValueError: If it is no name, or nothing says which class is positive.
    """
    if not isinstance(name, str):
        raise ValueError(
            "scoring= takes names, as 'f1', or scores of privbo_plugins, as scores.f1(...), got a "
            f"{type(name).__name__}: scikit-learn's own scorers see all records, without noise."
        )
    if name not in SCORES:
        return registered(name)  # which says what is near
    make = SCORES[name]
    known = inspect.signature(make).parameters
    if "labels" in known and is_classifier(estimator):
        if given.training_mu is not None:
            raise ValueError(
                f"scoring={name!r} takes its classes from the records that train, which "
                f"training_mu= protects: give scores.{name}(labels=(...)) of privbo_plugins."
            )
        classes = _classes(y)
        if "positive" in known and classes and {*classes} not in ({0, 1}, {-1, 1}):
            raise ValueError(
                f"scoring={name!r} of classes that are not 0 and 1, or -1 and 1, leaves open "
                f"which one is positive: give scores.{name}(labels=(...), positive=...) of "
                f"privbo_plugins, or {_FOR_SEVERAL.get(name, 'a score')} for several classes."
            )
        needs = [one for one in known.values() if one.default is one.empty]
        return make(labels=classes) if len(classes) > 1 and not needs else registered(name)
    if "y_low" in known:
        if given.y_range is None:
            raise ValueError(
                f"scoring={name!r} needs the range of the target, from public knowledge: "
                "y_range=(low, high)."
            )
        return make(*given.y_range)
    return registered(name)


_FOR_SEVERAL = {name: f"{name}_macro" for name in ("precision", "recall", "f1")}


def _classes(y: Any) -> tuple[Any, ...]:
    """Classes of the training records in order, as ``classes_`` of an estimator fitted on them."""
    labels = as_labels(y)
    if labels is None or labels.ndim != 1 or not len(labels):
        return ()
    return tuple(sorted({label for label in labels.tolist() if label is not None}, key=_order))


def _order(label: Any) -> tuple[bool, Any]:
    return isinstance(label, str), label


class RecordScores:
    """What a trial's model says of the validation records, for scores.

    Args:
        scores: Of the search, the one that parameters are chosen by first.
    """

    of = None
    speaks_of_shapes = True

    def __init__(self, scores: Sequence[Score]) -> None:
        self.scores = list(scores)
        self._takes = {score.statistic.takes for score in scores}
        known = (getattr(score.statistic, "labels", None) or (0, 1) for score in scores)
        self._labels_of_scores = max(known, key=len)

    @property
    def settings(self) -> dict[str, Any]:
        """Keywords of an algorithm that releases means."""
        return {"loss_bound": 1.0, "scores": self.scores}

    @property
    def sign(self) -> float:
        """1.0 where the first score is maximised, else -1."""
        return 1.0 if self.scores[0].greater_is_better else -1.0

    @property
    def best(self) -> float:
        """The best value of the first score, as :meth:`exact` signs it."""
        own = self.scores[0]
        return own.high if own.greater_is_better else -own.low

    def check(self, estimator: Any) -> None:
        """Checks that an estimator predicts what the scores take.

        Raises:
            ValueError: If it does not.
        """
        if any(getattr(score.statistic, "groups", ()) for score in self.scores):
            raise ValueError(
                "A gap needs the group of each record, which a search is not given: tune by gaps "
                "with private_objective (Optuna) or private_trainable (Ray Tune)."
            )
        of_classes = [s.name for s in self.scores if getattr(s.statistic, "labels", None)]
        if of_classes and is_regressor(estimator):
            raise ValueError(
                f"The score {of_classes[0]!r} is of classes, and {type(estimator).__name__} "
                "predicts numbers: take r2 or neg_mean_absolute_error, say."
            )
        for part, method in (("probabilities", "predict_proba"), ("predicted", "predict")):
            if part in self._takes and not hasattr(estimator, method):
                raise ValueError(
                    f"The scores need {method}, which {type(estimator).__name__} has not as it is "
                    "set. Take other scores, or set the estimator up for it."
                )

    def predicted(self, model: Any, X: Any) -> dict[str, Any]:
        """Returns what the scores take of the records, by name."""
        found = {"predicted": model.predict(X)} if "predicted" in self._takes else {}
        if "probabilities" not in self._takes:
            return found
        given, labels = model.predict_proba(X), self._labels_of_scores
        places = {label: place for place, label in enumerate(model.classes_.tolist())}
        P = np.zeros((len(given), len(labels)))
        for column, label in enumerate(labels):  # a class that none has trained has 0
            if label in places:
                P[:, column] = given[:, places[label]]
        return found | {"probabilities": P, "classes": labels}

    def __call__(self, model: Any, y: Any, prediction: Mapping[str, Any]) -> Predictions:  # noqa: ARG002
        """Predictions of the validation records."""
        return predictions(y, **prediction)

    def fails_in(self, rows: NDArray[np.float64]) -> bool:
        """Checks whether a function of the user's made nothing of any record, in ``rows_of``."""
        statistics = statistics_of(self.scores)
        ends = np.cumsum([own.n_columns for own in statistics])
        parts = zip(statistics, np.split(rows, ends[:-1], axis=1), strict=True)
        return any(isinstance(own, PerRecord) and not np.isfinite(p).any() for own, p in parts)

    def exact(self, model: Any, X: Any, y: Any) -> float:
        """Computes the first score of given records, without noise. It is not private."""
        score = _typed(self.scores[0], getattr(model, "classes_", ()))
        told = RecordScores([score])(model, y, RecordScores([score]).predicted(model, X))
        m = score.statistic.mean([rows_of([score], told)])
        return self.sign * score.estimate(m, np.zeros_like(m)).value

    def known_alone(self, told: Predictions, known: NDArray[np.bool_]) -> Predictions:
        """The same, where records that the model cannot predict count as the worst."""
        return replace(told, known=known)

    def nothing(self, n: int, _loss: float = math.nan) -> Predictions:
        """Predictions of which scores are about the worst: no record has one."""
        classes = self._labels_of_scores
        empty = np.full((n, len(classes)), math.nan)
        told = {"predicted": empty[:, 0], "probabilities": empty, "classes": classes}
        return self.known_alone(predictions([None] * n, **told), np.zeros(n, dtype=bool))
