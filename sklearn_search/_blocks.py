"""What a trial does where every record is protected: it fits and validates inside each block.

A record's place alone decides its block, and of each block its records alone decide types,
classes, folds and weights. What a block's fit raises or warns is dropped, not what it prints, and
a block that fails has the worst score.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from inspect import signature
from numbers import Integral
from typing import Any

import numpy as np
from sklearn import config_context, model_selection
from sklearn.base import is_classifier
from sklearn.metrics import get_scorer, get_scorer_names
from sklearn.model_selection import GroupKFold, GroupShuffleSplit, ShuffleSplit, check_cv
from sklearn.model_selection._split import GroupsConsumerMixin
from sklearn.utils.metaestimators import _safe_split
from sklearn.utils.validation import _check_method_params, _num_samples

from privbo_plugins.algorithms.values import value_range
from privbo_plugins.blocks import Blocks, check_blocks, needed, plan_blocks
from privbo_plugins.convert import as_losses, index_of
from privbo_plugins.foreign import answer
from privbo_plugins.privacy.figures import not_above
from privbo_plugins.scores import Score
from sklearn_search._losses import SCORED, RecordLoss, bounds_of, own_copy, to_loss
from sklearn_search._records import (
    Records,
    Task,
    apart,
    entries_of,
    groups_of,
    progress,
    rows_of,
    typed_entries,
)
from sklearn_search._scores import RecordScores
from sklearn_search._types import of_training


def check_all(given: Any, apart: bool, persons: bool) -> None:
    """Refuses what makes no sense beside ``protect="all"``, and what needs it.

    Args:
        given: The settings.
        apart: Whether validation records are given apart.
        persons: Whether ``groups`` are given.

    Raises:
        ValueError: Names the setting, why, and what to do.
    """
    if given.protect == "all":
        if apart:
            raise ValueError(
                'protect="all" deals all records into blocks, each of which trains and validates: '
                "give fit X and y of all records, and no X_valid= or y_valid=."
            )
        if given.training_mu is not None:
            raise ValueError(
                'training_mu= says what trainings cost, and with protect="all" they cost nothing '
                "more: each record is in one block. Leave it out."
            )
        if given.per_group != "mean" or given.group_bound is not None:
            raise ValueError(
                "per_group= and group_bound= say how rows of one person become an entry, and with "
                'protect="all" a block is one: leave them out.'
            )
        if given.loss == "balanced":
            raise ValueError(
                "loss='balanced' weighs classes by the labels of all records, which "
                'protect="all" protects: take scoring="balanced_accuracy", which each block '
                "computes by itself."
            )
        _check_folds(given.cv, persons)
        return
    for name in ("n_blocks", "cv"):
        if getattr(given, name) is not None:
            why = answer("settings", name, ()) if name == "cv" else "."
            raise ValueError(
                f'{name}= belongs to protect="all", where each block fits and validates by '
                f'itself{why} Write protect="all", or leave it out.'
            )


def _check_folds(cv: Any, persons: bool) -> None:
    """Refuses folds that no block can have, where an error would be dropped."""
    if isinstance(cv, GroupsConsumerMixin) and not persons:
        raise ValueError("cv= splits whole groups: give fit groups=, the person of each row.")
    if cv is not None:
        check_cv(copy.deepcopy(cv))


def all_records(X: Any, y: Any, params: Mapping[str, Any], groups: Any = None) -> Records:
    """All records, of which none is held out."""
    X, y = rows_of(X, y, groups is not None)
    n = _num_samples(X)
    persons = None if groups is None else groups_of(groups, n, X)
    own = entries_of(params, n, alone=True)
    return Records(X, y, (), None, own, {}, groups=persons)


def score_of(given: Any, estimator: Any) -> tuple[RecordLoss, float | None]:
    """Chooses what scores a block: a loss of each record or a score of scikit-learn's.

    Returns:
        The loss, or a scorer in its place; and the scorer's best value: 1, or 0 of a negated
        loss, or that of a score of privbo_plugins; None for a loss.

    Raises:
        ValueError: If there is no such score.
    """
    named = isinstance(given.scoring, str)
    if given.scoring is None or (named and given.scoring in SCORED):
        return to_loss(given, estimator, None), None
    if isinstance(given.scoring, Score):
        own = RecordScores([given.scoring])
        own.check(estimator)
        return RecordLoss(own.exact, "predict", False), own.best
    if not callable(given.scoring) and not (named and given.scoring in get_scorer_names()):
        raise ValueError(
            f"scoring={given.scoring!r} is no score of scikit-learn's, and none of several: with "
            'protect="all" give the name of one, or a function of (model, X, y).'
        )
    scorer = get_scorer(given.scoring)
    takes = signature(getattr(scorer, "_score_func", scorer)).parameters if named else {}
    of_one = getattr(takes.get("pos_label"), "default", None) is not None
    if of_one and getattr(scorer, "_kwargs", {}).get("average", "binary") == "binary":
        raise ValueError(
            f'scoring={given.scoring!r} takes label 1 for positive, and with protect="all" no fit '
            "may look whether records have it. Say which labels there are, from public knowledge: "
            "scores.f1(labels=(0, 1), positive=1) of privbo_plugins, say, or make_scorer of "
            "sklearn.metrics with pos_label=1."
        )
    return RecordLoss(scorer, "predict", False), float(getattr(scorer, "_sign", 1) > 0)


@dataclass(eq=False, repr=False)
class BlockTask(Task):
    """What a trial does where every record is protected.

    Attributes:
        splits: ``cv``, of each block; None for one split by ``valid_size``.
        valid_size: Share, or number, of a block's records that validate.
        seed: Which records are in which block, and which of a block validate.
        n_blocks: How many; None until they are known.
        best: Score of a loss of 0, of a scorer; None for a loss of each record.
        n_jobs: Blocks at once.
        bar: Whether a bar shows the blocks of a trial.
    """

    splits: Any = None
    valid_size: Any = 0.5
    seed: int = 0
    n_blocks: int | None = None
    best: float | None = None
    n_jobs: int | None = None
    bar: bool = False

    @property
    def n_protected(self) -> int:
        """Number of all records, or of all persons; public."""
        persons = self.records.groups
        return int(_num_samples(self.records.X) if persons is None else persons.n)

    def deal(self, n_blocks: int | None, n_records: int, mu: float) -> int:
        """Fixes the number of blocks, as given or planned.

        Raises:
            ValueError: If it is none.
        """
        if n_blocks is None:
            n_blocks = plan_blocks(n_records, mu, len(self.parameters.space))
        check_blocks(n_blocks, n_records)
        self.n_blocks = int(n_blocks)
        if self.best is not None:
            self.ends = value_range(self.bounds["loss_bound"])
        own = {"groups": self.records.groups, "unit": self.whose["unit"], "seed": self.seed}
        self.whose = Blocks(len, n_records, self.n_blocks, **own).settings()
        if own["groups"] is None and (index := index_of(self.records.X)) is not None:
            self.whose["record_ids"] = [index] * self.n_blocks  # in their order they are dealt
        return self.n_blocks

    def note(self, n_records: int, mu: float) -> str:
        """Says for a plan what blocks there are, and how many records they would take."""
        K, d = self.n_entries, len(self.parameters.space)
        return (
            f"  {K} blocks of {n_records // K} or more of {n_records} records; each block is one "
            f"entry, n above: K mu = {not_above(K * mu, 3)}, and what helps is {needed(d, mu)}"
        )

    @property
    def n_entries(self) -> int:
        """Number of entries of a trial's vector: one a block."""
        return self.n_blocks or 0

    @property
    def best_score(self) -> float:
        """Score of a loss of 0."""
        return super().best_score if self.best is None else self.best

    @property
    def split(self) -> Mapping[str, Any]:
        """Describes how records are split, JSON-ready; public."""
        inside, folds = self.valid_size, self.splits
        if folds is not None:  # not its text, which is stored and may show what it was made of
            n = folds if isinstance(folds, Integral) else getattr(folds, "n_splits", None)
            kind = type(folds)
            known = vars(model_selection).get(kind.__name__) is kind
            inside = kind.__name__ if known else "folds"
            inside += f"({int(n)})" if isinstance(n, Integral) else ""
        return {
            "all": self.n_protected, "blocks": self.n_blocks, "inside": inside,
            "random_state": self.seed,
        }  # fmt: skip

    def training(self) -> Records:
        """Returns all records, which train the model that is handed out, typed as in a block."""
        own = self.records
        y = of_training(own.y, labels=is_classifier(self.estimator))
        params = typed_entries(own.fit_params, _num_samples(own.X))
        return replace(own, X=of_training(own.X), y=y, fit_params=params)

    def losses(self, values: Mapping[str, Any]) -> Any:
        """The loss of each block, shape (K,), for values as a host knows them."""
        line = {"total": self.n_entries, "desc": "blocks", "leave": False}
        with config_context(**self.settings), progress(self.bar, **line) as moved:
            blocks = Blocks(
                self._of_block, self.n_protected, self.n_entries, groups=self.records.groups,
                seed=self.seed, failed=self.of_a_failed_fit, n_jobs=self.n_jobs, progress=moved,
            )  # fmt: skip
            return blocks(self.parameters.decoded(values))

    def _of_block(self, params: Mapping[str, Any], places: Any) -> float:
        """The mean loss of a block over its splits."""
        X, y = _safe_split(self.estimator, self.records.X, self.records.y, places, places)
        with config_context(**self.settings):  # also in another process
            found = [
                self._of_split(params, X, y, places, *split)
                for split in self._splits(X, y, places)
            ]
        return float(np.mean(found))

    def _splits(self, X: Any, y: Any, places: Any) -> Iterator[tuple[Any, Any]]:
        """Which records of a block train and which validate, by their places in it.

        Persons of a block are on one side with all of their rows.
        """
        whose = None if self.records.groups is None else self.records.groups.of[places]
        if self.splits is None:
            kind = ShuffleSplit if whose is None else GroupShuffleSplit
            cv = kind(1, test_size=self.valid_size, random_state=self.seed)
        elif whose is not None and isinstance(self.splits, Integral):
            cv = GroupKFold(self.splits)
        else:
            labels = is_classifier(self.estimator)
            y = of_training(y, labels=labels)  # whose type all records decide, before
            cv = check_cv(copy.deepcopy(self.splits), y, classifier=labels)
        return cv.split(X, y, whose)  # type: ignore[no-any-return]

    def _of_split(self, params: Any, X: Any, y: Any, places: Any, train: Any, valid: Any) -> float:
        given = self.estimator, X, y
        X_train, y_train = _safe_split(*given, train)
        X_valid, y_valid = _safe_split(*given, valid, train)
        own = _check_method_params(self.records.X, self.records.fit_params, places[train])
        own = copy.deepcopy(own)  # what belongs to no record, fits share
        labels = is_classifier(self.estimator)
        block = apart(labels, X_train, y_train, X_valid, y_valid, own, {})
        # A cache that is hit saves draws, and so moves those of later steps.
        model = self._fit(params, block, caches=False)
        if self.best is not None:
            scorer: Any = copy.deepcopy(self.loss.of)  # what it keeps, other blocks do not see
            return self.best - float(scorer(model, block.X_valid, block.y_valid))
        loss = copy.deepcopy(self.loss)
        found = as_losses(loss(model, block.y_valid, loss.predicted(model, block.X_valid)))
        return float(np.where(np.isnan(found), self._worst, found).mean())

    @property
    def _worst(self) -> float:
        """The loss of a record for which there is none: the largest that it may have."""
        own = getattr(self.loss.of, "loss_bound", None)
        return value_range(self.bounds["loss_bound"] if own is None else own)[1]


def block_task(given: Any, estimator: Any, records: Records, parameters: Any) -> BlockTask:
    """Builds the task that a search's settings ask for.

    Raises:
        ValueError: If they make no sense.
    """
    loss, best = score_of(given, estimator)
    own_copy(loss)
    most = given.scoring.high - given.scoring.low if isinstance(given.scoring, Score) else best
    unknown = given.loss_bound is None
    bounds = {"loss_bound": float(most)} if most and unknown else bounds_of(given, loss)
    bounds |= {"clipping_norm": given.clipping_norm}  # None: it is planned
    inside = {"splits": given.cv, "valid_size": given.valid_size, "seed": given.random_state}
    here = given.backend == "optuna"  # elsewhere trials run at once, in processes of their own
    inside |= {"n_jobs": given.n_jobs if here else None, "bar": here and given.verbose == 1}
    whose = {"unit": given.unit}
    return BlockTask(
        estimator, records, loss, bounds, parameters, given.error_score,
        withholds=True, best=best, whose=whose, **inside,
    )  # fmt: skip
