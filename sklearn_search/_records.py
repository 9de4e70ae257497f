"""Which records train and which are scored, and what one trial makes of them.

A record's place alone decides whether it is held out: a split that looked at labels would move
other records when one is replaced, and the guarantee is for one that is replaced. With ``groups``
a person's place is its id, hashed: see :func:`_persons_apart`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import clone, config_context, get_config
from sklearn.base import is_classifier
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import ShuffleSplit
from sklearn.utils import _safe_indexing, indexable
from sklearn.utils.metaestimators import _safe_split
from sklearn.utils.validation import _check_method_params, _num_samples

from privbo_plugins.algorithms.values import value_range
from privbo_plugins.convert import as_losses, as_records, each_alone
from privbo_plugins.errors import NotLossesError, ObjectiveFailedError, warn
from privbo_plugins.foreign import answer
from privbo_plugins.groups import Groups
from privbo_plugins.losses import ZeroOne
from privbo_plugins.sanitize import call, forgiven, public_name, sanitized, unheard
from privbo_plugins.scores.score import Estimate
from privbo_plugins.scores.score import rows_of as rows_of_scores
from sklearn_search._losses import RecordLoss
from sklearn_search._scores import RecordScores
from sklearn_search._space import Parameters
from sklearn_search._types import as_in_training, of_training

_OTHER_SHAPES = (
    "The loss takes one target and one prediction (or a row of probabilities) of each validation "
    "record, and y, or what the estimator predicts, has another shape. Let no step drop rows, and "
    "of several outputs add up the losses, in a loss= of your own."
)


_FAILED_IN_TRAINING = (
    "A trial failed while it scored records that trained, on which predictions, losses and scores "
    "of your own are first tried: no validation record was scored in it, and nothing more was "
    "released. What was raised is withheld, because exception texts quote data; to see it, fit "
    "clone(estimator).set_params(...) and score training records by yourself."
)


@dataclass(frozen=True, eq=False, repr=False)
class Records:
    """Records that train, and records that are scored and protected.

    Attributes:
        X: Of training.
        y: Of training.
        X_valid: Of validation, n_valid of them.
        y_valid: Of validation.
        fit_params: For the estimator's ``fit``, of the training records.
        split: How they were told apart, JSON-ready; public.
        labels: What a pandas table calls its validation records, in their order; None elsewhere.
        groups: Whose each validation row is; None where a row is a record.
    """

    X: Any
    y: Any
    X_valid: Any
    y_valid: Any
    fit_params: Mapping[str, Any]
    split: Mapping[str, Any]
    labels: Any = None
    groups: Groups | None = None

    @property
    def n_valid(self) -> int:
        """Number of validation records, or persons; public."""
        return self.n_rows if self.groups is None else self.groups.n

    @property
    def n_rows(self) -> int:
        """Number of validation rows; private where several are one person's."""
        return int(_num_samples(self.X_valid))


def _of_protected(error: BaseException) -> ObjectiveFailedError:
    """Tells the type of what was raised while protected records trained, and no more."""
    return ObjectiveFailedError(
        f"The estimator raised {public_name(error)} while it was fitted. Its text is withheld, as "
        "the training records are protected: fit a clone on records that are not secret."
    )


def entries_of(params: Mapping[str, Any], n_rows: int, *, alone: bool = False) -> dict[str, Any]:
    """Checks what ``fit`` gets beside the records; no text tells how many rows persons have.

    Args:
        params: By name.
        n_rows: Number of rows.
        alone: Whether each part of the records is on its own, and no other record may reach it.

    Returns:
        The same, where what has one entry for each row can be cut.

    Raises:
        ValueError: If weights have another length, or, ``alone``, anything holds other records.
    """
    own = {}
    for name, value in params.items():
        mine = _is_of_rows(value, n_rows)
        if name.endswith("sample_weight") and value is not None and not mine:
            raise ValueError(f"{name} must have one entry for each row of X.")
        if alone and not mine and _holds_rows(value):
            raise ValueError(
                f"{name}= holds an array, or a list of lists, that has not one entry for each row "
                "of X: every block would see it, so that a record in it would touch all scores. "
                'Leave it out with protect="all".'
            )
        own[name] = _cuttable(value) if mine else value
    return own


def _is_of_rows(value: Any, n_rows: int) -> bool:
    listed = hasattr(value, "__len__") and not isinstance(value, str)
    return listed and _num_samples(value) == n_rows


def typed_entries(params: Mapping[str, Any], n_rows: int) -> dict[str, Any]:
    """Types what ``fit`` gets for each training record like these; all else stays."""
    return {
        name: of_training(value) if _is_of_rows(value, n_rows) else value
        for name, value in params.items()
    }


def _holds_rows(value: Any, inside: bool = False) -> bool:
    if isinstance(value, Mapping):
        return any(_holds_rows(part, inside) for part in value.values())
    if isinstance(value, list | tuple):
        return inside or any(_holds_rows(part, inside=True) for part in value)
    return hasattr(value, "tocsr") or (hasattr(value, "__array__") and np.ndim(value) > 0)


def check_fit_params(estimator: Any, params: Mapping[str, Any]) -> None:
    """Refuses what the estimator's ``fit`` does not take, before anything is fitted.

    Raises:
        TypeError: As a call of ``fit`` itself would.
    """
    known = inspect.signature(estimator.fit).parameters
    any_name = any(known[name].kind is inspect.Parameter.VAR_KEYWORD for name in known)
    for name in () if any_name else set(params).difference(known):
        told = answer("settings", name, known, "=")
        raise TypeError(f"fit of {type(estimator).__name__} takes no {name!r}{told}")


def given_records(
    estimator: Any, X: Any, y: Any, X_valid: Any, y_valid: Any, params: Any,
    groups: Any = None, groups_valid: Any = None,
) -> Records:  # fmt: skip
    """Records that the user has told apart.

    Raises:
        ValueError: If X and y do not belong together, or are the validation records; or if a
            person is on both sides, which no text names.
    """
    if X_valid is None or (y_valid is None) != (y is None):
        raise ValueError(
            "fit takes X_valid= and y_valid= together, beside X and y of the training records; or "
            "none of them, and holds out valid_size of the records itself."
        )
    if _overlap(X, X_valid):
        raise ValueError(
            "X_valid is X, or a part of it: a record that both trains and validates has no "
            "guarantee. Give fit X and y alone, and it holds out some of them."
        )
    persons = groups is not None or groups_valid is not None
    X, y = rows_of(X, y, persons)
    X_valid, y_valid = rows_of(X_valid, y_valid, persons)
    _check_columns(X, X_valid)
    n, n_valid = _num_samples(X), _num_samples(X_valid)
    params, whose = entries_of(params, n), None
    if persons:
        if groups is None or groups_valid is None:
            raise ValueError(
                "Give both groups= of X and groups_valid= of X_valid, which may share no person."
            )
        trains, whose = groups_of(groups, n, X), groups_of(groups_valid, n_valid, X_valid)
        if whose.shared_with(trains):
            raise ValueError(_BOTH_SIDES)
        n, n_valid = trains.n, whose.n
    told_apart = {"given": True, "train": n, "valid": n_valid}
    kind = is_classifier(estimator)
    return apart(kind, X, y, X_valid, y_valid, params, told_apart, whose)


def _cuttable(part: Any) -> Any:
    if type(part).__module__.partition(".")[0] == "pandas" and not hasattr(part, "iloc"):
        from pandas import Series  # an index or an array, typed by all entries as a column is

        return Series(part)
    known = part is None or hasattr(part, "shape") or isinstance(part, list | tuple | Mapping)
    return part if known else as_records(part)  # an entry that cannot be read is None


def rows_of(X: Any, y: Any, persons: bool) -> Any:
    """X and y that can be indexed, and cut: sparse tables are CSR, other sequences lists.

    Args:
        X: Records.
        y: Their targets, or None.
        persons: Whether several rows may be one person's: then no text tells how many there are.

    Raises:
        ValueError: If there are more or fewer of one than of the other.
    """
    for given in (X, y):
        if hasattr(given, "to_pandas") and not hasattr(given, "iloc"):
            raise ValueError(
                f"A table of {type(given).__module__.split('.')[0]} has its types of all records, "
                "so that one decides them: give X.to_pandas(), whose columns are typed anew."
            )
    with suppress(ValueError) if persons else nullcontext():
        return [_cuttable(part) for part in indexable(X, y)]
    raise ValueError(
        "X and y, and X_valid and y_valid, must have one entry for each row, and their lengths "
        "differ: take both from one table."
    )


_BOTH_SIDES = (
    "groups and groups_valid have persons in common: one that both trains and validates has no "
    "guarantee. Give fit X, y and groups= alone, and it holds out whole persons."
)


def groups_of(ids: Any, n_rows: int, X: Any = None) -> Groups:
    """The persons of some rows.

    Raises:
        ValueError: If there are more or fewer ids than rows, how many is not told; or if both
            are pandas objects with another index.
    """
    groups = Groups(ids)
    if len(groups.of) != n_rows:
        raise ValueError(
            "groups must have one id for each row of X, groups_valid for each of X_valid, and it "
            "has another length: give a column of the same table, as df['patient']."
        )
    own, index = getattr(ids, "index", None), getattr(X, "index", None)
    tables = hasattr(own, "equals") and hasattr(index, "equals")  # unlike a list's method
    if own is not None and tables and not own.equals(index):
        raise ValueError(
            "groups and X have another index each, and rows are matched by their place: give a "
            "column of the same table, as df['patient'], or groups.to_numpy() if places agree."
        )
    return groups


def _persons_apart(
    groups: Groups, valid_size: Any, random_state: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Holds out whole persons: rows that train, and rows that are scored.

    Persons are sorted by a hash of id and ``random_state``, and the first of them are held out. So
    the rows of a person (how many, where they stand, what they hold) move no person to the other
    side, and the number on each side is exact and follows from the number of persons. The order
    in which persons first appear would not do: a person with an earlier row would move others. A
    hash that decided for each person alone would not either: the numbers would follow from ids.
    Where a person of another id takes the place of one that was held out, and its hash is not
    among the first ones, it trains and one other person is held out instead; more may be where
    one odd id makes a file's numbers texts that spell them in another way (007, 7.0).
    """
    ((_, valid),) = ShuffleSplit(1, test_size=valid_size, random_state=0).split(range(groups.n))
    held = (groups.ranks(random_state) < len(valid))[groups.of]  # as many as valid_size says
    return np.flatnonzero(~held), np.flatnonzero(held)


def _check_columns(X: Any, X_valid: Any) -> None:
    """Refuses a table of other columns: no model could predict any record of it."""
    names = [list(given.columns) for given in (X, X_valid) if hasattr(given, "columns")]
    widths = [list(given.shape[1:]) for given in (X, X_valid) if hasattr(given, "shape")]
    for told in (names, widths):
        if len(told) == 2 and told[0] != told[1]:
            raise ValueError(
                "X_valid must have the columns of X, in the same order, because a model that is "
                "fitted on X predicts X_valid, and it has others. Take X_valid[X.columns] of a "
                "table, and encode categories by what X holds."
            )


def _overlap(X: Any, X_valid: Any) -> bool:
    """Checks whether both are the same records in memory, whatever they hold; copies go unseen."""
    if X_valid is X:
        return True
    if not (isinstance(X, np.ndarray) and isinstance(X_valid, np.ndarray)):
        return False
    with suppress(np.exceptions.TooHardError):
        return np.shares_memory(X, X_valid, max_work=10_000)  # type: ignore[arg-type]  # narrow stub
    return False


def held_out(
    estimator: Any, X: Any, y: Any, params: Any, *, valid_size: Any, random_state: Any,
    groups: Any = None,
) -> Records:  # fmt: skip
    """Records of which some are held out, by their places alone.

    Args:
        estimator: Whose X may hold a kernel of all pairs of records.
        X: All records.
        y: Their targets, or None.
        params: For ``fit``; what has an entry a record is split like the records.
        valid_size: Share or number.
        random_state: An integer.
        groups: Whose each row is; then whole persons are held out.

    Raises:
        ValueError: For another ``random_state``, or too few records.
    """
    if not isinstance(random_state, Integral) or isinstance(random_state, bool):
        raise ValueError(
            "random_state must be an integer: a study that is resumed must hold out the same "
            f"records, got {type(random_state).__name__}. Or give fit X_valid= and y_valid=."
        )
    X, y = rows_of(X, y, groups is not None)
    n, whose = _num_samples(X), None
    params = entries_of(params, n)
    if groups is None:
        splitter = ShuffleSplit(1, test_size=valid_size, random_state=int(random_state))
        ((train, valid),) = splitter.split(np.empty(n))
        train, valid = np.sort(train), np.sort(valid)
        sizes = len(train), len(valid)
    else:
        persons = groups_of(groups, n, X)
        train, valid = _persons_apart(persons, valid_size, int(random_state))
        whose = persons.at(valid)
        sizes = persons.n - whose.n, whose.n
    X_train, y_train = _safe_split(estimator, X, y, train)
    X_valid, y_valid = _safe_split(estimator, X, y, valid, train)
    told_apart = {
        "given": False, "train": sizes[0], "valid": sizes[1], "random_state": int(random_state)
    }  # fmt: skip
    own = _check_method_params(X, params, indices=train)
    labels = is_classifier(estimator)
    return apart(labels, X_train, y_train, X_valid, y_valid, own, told_apart, whose)


def apart(
    labels: bool, X: Any, y: Any, X_valid: Any, y_valid: Any, params: Mapping[str, Any],
    split: Mapping[str, Any], groups: Groups | None = None,
) -> Records:  # fmt: skip
    """Records of which those that train know nothing of the others, by their types either."""
    X, y = of_training(X), of_training(y, labels=labels)
    own = typed_entries(params, _num_samples(X))
    names = getattr(X_valid, "index", None)
    with unheard:
        typed, failed = call(
            lambda: (as_in_training(X, X_valid, ""), as_in_training(y, y_valid, labels=labels))
        )
    if typed is None or failed is not None:
        raise ValueError("Validation records could not be given the types of those that train.")
    X_valid, y_valid = typed
    names = names if hasattr(type(names), "to_numpy") and groups is None else None
    split = {**split, "index": names is not None}  # a study that compares one needs it again
    split |= {} if groups is None else {"persons": True}
    return Records(X, y, X_valid, y_valid, own, split, names, groups)


@contextmanager
def progress(wanted: bool, **line: Any) -> Iterator[Callable[..., object]]:
    """Draws one line of progress, if it is wanted; yields what moves it on."""
    from tqdm import tqdm

    with tqdm(**line, disable=not wanted) as bar:
        yield lambda *_: bar.update()


@dataclass(eq=False, repr=False)
class Task:
    """What a trial does: fits a clone on the training records and scores the others.

    Attributes:
        estimator: What is tuned.
        records: Which train and which are scored.
        loss: Of each record.
        bounds: How large it may be: ``loss_bound``, and perhaps ``clipping_norm``.
        parameters: The search space.
        error_score: "raise", or the loss of every record for a fit that fails.
        withholds: Whether nothing may be told of what the estimator says while it is fitted.
        failure: What ends the search and may be told: what the estimator raised while it was
            fitted, training records at most, what a loss says of shapes, or that scoring failed
            for records that trained.
        failed_fits: What the estimator said in trials of this process that count by
            ``error_score``; of training records at most.
        settings: scikit-learn's own, which threads and workers would not see.
        whose: Settings of a host that say whose each loss is.
        last: What is released once more, of the model that is handed out.
        ends: Of the range of a block's score, to which noise beyond it is clipped.
    """

    estimator: Any
    records: Records
    loss: RecordLoss | RecordScores
    bounds: Mapping[str, Any]
    parameters: Parameters
    error_score: Any
    withholds: bool = False
    failure: Exception | None = None
    failed_fits: list[str] = field(default_factory=list)
    settings: Mapping[str, Any] = field(default_factory=get_config)
    whose: Mapping[str, Any] = field(default_factory=dict)
    last: RecordScores | None = None
    ends: tuple[float, float] = (-math.inf, math.inf)
    _last_fit: tuple[Any, BaseException | None] | None = field(default=None, init=False)

    @property
    def n_protected(self) -> int:
        """Number of those who are protected; public."""
        return self.records.n_valid

    @property
    def n_entries(self) -> int:
        """Number of entries of a trial's vector: one a validation record."""
        return self.records.n_valid

    @property
    def split(self) -> Mapping[str, Any]:
        """Describes how records are split, JSON-ready; public."""
        return self.records.split

    @property
    def best_score(self) -> float:
        """Score of a loss of 0: an accuracy, or a negated loss."""
        return float(isinstance(self.loss.of, ZeroOne))

    @property
    def sign(self) -> float:
        """1.0 where what is released is maximised, else -1."""
        return self.loss.sign

    def deal(self, n_blocks: int | None, n_records: int, mu: float) -> int:  # noqa: ARG002
        """Number of entries of a vector, of so many who are protected."""
        return n_records

    def note(self, n_records: int, mu: float) -> str:  # noqa: ARG002
        """Adds to what a plan says."""
        return ""

    def losses(self, values: Mapping[str, Any]) -> Any:
        """One loss a validation row (n_rows,), or predictions, for values as a host knows them.

        Raises:
            Exception: What the estimator raises.
        """
        with config_context(**self.settings):
            try:
                model = self.fitted(self.parameters.decoded(values))
            except Exception as error:
                if self.error_score != "raise":
                    self.failed_fits.append(f"{type(error).__name__}: {error}")
                    return self.loss.nothing(self.records.n_rows, self.of_a_failed_fit)
                self.failure = error
                raise
            return self._scored(model)

    def _scored(self, model: Any) -> Any:
        """One loss a validation record, and no word about them."""
        tried = False
        with unheard, np.errstate(all="ignore"):
            try:
                for loss in (self.loss, self.last):
                    self._try(model, loss)
                tried = True
                return self._told(model)
            except Exception as error:
                if isinstance(error, NotLossesError) and self.loss.speaks_of_shapes:
                    self.failure = NotLossesError(_OTHER_SHAPES)
                elif not tried:
                    self.failure = ObjectiveFailedError(_FAILED_IN_TRAINING)
                raise

    def _told(self, model: Any) -> Any:
        """The losses; NaN of a record that the model, or a loss of the user's, fails for."""
        n, y = self.records.n_rows, self.records.y_valid
        prediction, predicted = self._predictions(model)
        if prediction is None:
            return self.loss.nothing(n)
        try:
            losses = self.loss(model, y, prediction)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # any kind, of a loss of the user's
            if isinstance(error, NotLossesError) and self.loss.speaks_of_shapes:
                raise
            losses = each_alone(
                lambda y, told: as_losses(self.loss(model, y, told)), [y, prediction], n
            )
            losses = self.loss.nothing(n) if losses is None else losses
        return losses if predicted is None else self.loss.known_alone(losses, predicted)

    def _try(self, model: Any, loss: RecordLoss | RecordScores | None) -> None:
        """Scores eight records that trained, on which a model or loss fails that fails on all.

        A function of a score may be meant for few records, so it is tried on all that trained
        before it is refused. A refusal must not depend on a validation record, nor on any where
        all are protected.

        Raises:
            Exception: What the model raises, or a loss or score of the user's.
        """
        records = self.records
        if self.withholds or records.y is None or loss is None:
            return

        def scored(X: Any, y: Any) -> Any:
            told = loss(model, y, loss.predicted(model, X))
            return rows_of_scores(loss.scores, told) if isinstance(loss, RecordScores) else told

        for few in (slice(8), slice(None)):
            own = [_safe_indexing(part, few) for part in (records.X, records.y)]
            found = each_alone(scored, own, _num_samples(own[1]))
            if found is None:
                scored(*own)
            if found is None or not (isinstance(loss, RecordScores) and loss.fails_in(found)):
                return
        raise ObjectiveFailedError(_FAILED_IN_TRAINING)

    def _predictions(self, model: Any) -> tuple[Any, NDArray[np.bool_] | None]:
        """Predictions of all validation records, and which records they are of (None: of all).

        A record that the model cannot predict decides nothing about the others': another one is
        predicted in its place. There are none where the model can predict no record.
        """
        X, n = self.records.X_valid, self.records.n_rows
        with forgiven:  # what it says may quote a record
            return self.loss.predicted(model, X), None

        def known(rows: Any) -> NDArray[np.float64]:
            self.loss.predicted(model, rows)
            return np.ones(_num_samples(rows))

        alone = each_alone(known, [X], n)
        if alone is None:
            return None, np.zeros(n, dtype=bool)
        places, predicted = np.arange(n), alone == 1
        others = np.where(predicted, places, places[predicted][0])
        return self.loss.predicted(model, _safe_indexing(X, others)), predicted

    def warn_of_failed_fits(self) -> None:
        """Issues a ``FitFailedWarning`` if there were any, as other searches do."""
        if self.failed_fits:
            warn(
                f"{len(self.failed_fits)} fits failed, and count as error_score="
                f"{self.error_score}. The last of them said: {self.failed_fits[-1]}",
                FitFailedWarning,
            )

    @property
    def of_a_failed_fit(self) -> float:
        """The loss that ``error_score`` stands for: the worst, or its own."""
        _, worst = value_range(self.bounds["loss_bound"])
        own = self.error_score
        return worst if own == "raise" or math.isnan(own) else float(own)

    def training(self) -> Records:
        """Returns the records that train, in their types."""
        return self.records

    def fitted(self, params: Mapping[str, Any]) -> Any:
        """A clone with these parameters, fitted on the training records.

        Raises:
            Exception: What the estimator raises, or an :class:`ObjectiveFailedError` in place of
                it, where the training records are protected.
        """

        def fit() -> Any:
            return self._fit(params, self.training())

        if not self.withholds:
            return fit()
        with unheard:
            fitted, error = call(fit, _of_protected)
        if error is not None:
            raise error
        return fitted

    def last_fit(self, params: Mapping[str, Any]) -> tuple[Any, BaseException | None]:
        """Fits the model that is handed out, once: the model, or what was raised."""
        if self._last_fit is None:
            try:
                self._last_fit = self.fitted(params), None
            except (Exception, SystemExit) as error:
                self._last_fit = None, error
        return self._last_fit

    def released_last(
        self, values: Mapping[str, Any], release: Callable[[Any, Any], tuple[float, float]]
    ) -> Estimate | None:
        """Releases the last score, of that model; None where there is no score, or no model.

        Where training records are protected it is not told that there is none.

        Raises:
            ObjectiveFailedError: If the records could not be scored.
        """
        if self.last is None:
            return None
        model, error = self.last_fit(self.parameters.decoded(values))
        if error is not None and not self.withholds:
            return None
        told: Any = self.last.nothing(self.records.n_rows)
        failed = None
        if error is None:
            told, failed = call(partial(replace(self, loss=self.last)._scored, model), sanitized)
        if failed is not None:
            raise failed
        return Estimate(*release(self.last.scores[0], told))

    def _fit(self, params: Mapping[str, Any], records: Records, *, caches: bool = True) -> Any:
        """A clone with these parameters, fitted on some training records; caches may be off."""
        model = clone(self.estimator).set_params(**clone(dict(params), safe=False))
        if not caches:
            names = [n for n in model.get_params() if n.rpartition("__")[2] == "memory"]
            model.set_params(**dict.fromkeys(names))
        y = () if records.y is None else (records.y,)
        return model.fit(records.X, *y, **records.fit_params)
