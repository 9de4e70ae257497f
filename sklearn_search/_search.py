"""The search as scikit-learn's people know searches."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from itertools import chain
from numbers import Real
from pathlib import Path
from traceback import clear_frames, walk_tb
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone
from sklearn.metrics import check_scoring
from sklearn.utils import get_tags
from sklearn.utils.metadata_routing import (
    UNUSED,
    MetadataRouter,
    MethodMapping,
    _raise_for_params,
    _routing_enabled,
    process_routing,
)
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from privbo_plugins import sanitize
from privbo_plugins.algorithms.dp_gibo.config import GIBOConfig
from privbo_plugins.algorithms.protocols import CentralPlan
from privbo_plugins.algorithms.registry import algorithm_of, entry, planned
from privbo_plugins.algorithms.released_means import MeansConfig
from privbo_plugins.errors import PrivacyWarning, paid_for, warn
from privbo_plugins.foreign import no_attribute
from privbo_plugins.groups import Unit, names_of, unit_of_rows
from privbo_plugins.privacy.accountant import compose_mu
from privbo_plugins.privacy.figures import not_below, together
from privbo_plugins.privacy.guarantee import Guarantee
from privbo_plugins.privacy.settings import RecordSettings
from privbo_plugins.privacy.words import of_unit, plural
from privbo_plugins.reports import records_report
from privbo_plugins.scores import Score
from privbo_plugins.sessions.reader import most_trainings
from privbo_plugins.settings import Rule, evolve, fields_of, integer, named, one_of, takes
from privbo_plugins.store.vault import open_vault, refuse_password, resolve_url
from sklearn_search._blocks import all_records, block_task, check_all
from sklearn_search._found import Found, place_of, table_of
from sklearn_search._losses import (
    RecordLoss,
    bounds_of,
    own_copy,
    to_loss,
    warn_of_noise,
    warn_of_rare_class,
)
from sklearn_search._records import Records, Task, check_fit_params, given_records, held_out
from sklearn_search._scores import RecordScores, last_score, scores_in, to_scorer, to_scores
from sklearn_search._settings import PrivateSearchSettings, Shown
from sklearn_search._space import check_values, to_parameters
from sklearn_search._types import as_in_training

_NO_LAST = (
    "final_score= is released of validation records that are one row each: leave it out with "
    'groups= and with protect="all".'
)

_LAST_SHARE = 0.1
"""Of the squared budget, for a last score."""

_MIXED = "no figure holds for all {} runs of this object, such as those of {} and of {}: {}"

_UNSEEN = (
    "; one that trains in another of them has no figure, and whether each fit got the same "
    "records in the same places is not compared"
)

_LASTING = "storage=, study_name=, vault= and load_if_exists=True"

NOTE = (
    "best_estimator_ is fitted on the training {units} and shows of the validation {units} "
    "nothing beyond the released parameters; score(X, y) is computed from what "
    "it is given, and what it says of private {units} is not private; each call of fit spends mu "
    "anew, cross-validation of the search once a fold"
)
"""What a guarantee of a search says besides."""

NOTE_ALL = (
    "best_estimator_ is fitted on all {units} and is not covered, nor is whether that fit fails: "
    "handed out, it tells of them; score(X, y) is computed from what it is given, and is not "
    "private either; each call of fit spends mu anew"
)
"""The same where every record is protected."""

_UNFITTED = (
    "There is no best_estimator_, because the last fit, on all records that train, failed, and "
    "what it raised is withheld, as they are protected: to look for it, fit a clone of estimator= "
    "with best_params_ on records that are not secret."
)


_KNOWN: Mapping[str, Rule] = {
    "backend": one_of("optuna", "ray"),
    "method": one_of("dp-gibo", "released-means"),
    "incumbent": Rule(
        "'auto', a dictionary by parameter, or None",
        lambda i: i is None or isinstance(i, Mapping) or (isinstance(i, str) and i == "auto"),
    ),
    "n_jobs": Rule(
        "an integer > 0, -1 or None", lambda n: n is None or (integer(-1).holds(n) and n != 0)
    ),
    "refit": Rule(
        "True or False, or of several scores the name of the one that parameters are chosen by",
        lambda r: isinstance(r, bool | str),
    ),
    "protect": one_of("validation", "all"),
    "scoring": Rule(
        "one of scikit-learn's names, a score of privbo_plugins.scores, or several of them (a "
        'function would score all records: see loss=, or protect="all")',
        lambda s: s is None or isinstance(s, str | Score | list | tuple | Mapping),
    ),
    "callbacks": Rule("a list or None", lambda c: c is None or isinstance(c, list | tuple)),
    "error_score": Rule(
        "'raise', or the loss of every record where the estimator cannot be fitted (numpy.nan "
        "for the worst)",
        lambda s: s == "raise" or (isinstance(s, Real) and not isinstance(s, bool)),
    ),
}
"""What some settings may hold, which is checked when ``fit`` begins."""


def _of_fit(name: str) -> bool:
    """Checks whether an attribute is one that ``fit`` makes."""
    return name.endswith("_") and not name.startswith("_")


def _has(name: str) -> Callable[[Any], bool]:
    """Checks whether a search has something of its estimator's."""

    def check(search: Any) -> bool:
        coming = search.refit and "best_estimator_" not in vars(search)
        getattr(search.estimator if coming else search.best_estimator_, name)
        return True

    return check


def _of_estimator(name: str) -> Any:
    """Makes a method of the fitted estimator one of the search, if the estimator has it."""

    def called(self: Any, X: Any) -> Any:
        """As of ``best_estimator_``."""
        check_is_fitted(self)
        return getattr(self.best_estimator_, name)(X)

    called.__name__ = name
    called.__qualname__ = f"PrivateSearch.{name}"
    return available_if(_has(name))(called)


class PrivateSearch(MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]  # without types
    """Tunes an estimator with differential privacy for the validation records.

    Each trial fits a clone on the training records and scores the validation records one by one;
    what is stored and shown of these scores is mu-GDP for the validation records (replace-one).
    **The training records are not protected**: ``best_estimator_`` is fitted on them. Nor is what
    ``score(X, y)`` says of the records that it is given. Each call of ``fit`` spends mu anew.

    ``fit(X, y)`` holds out ``valid_size`` of the records by their places alone, not stratified: a
    split that looked at labels would move other records when one is replaced. Where persons have
    several rows, ``fit(X, y, groups=ids)`` holds out and protects whole persons.

    {settings}

    Attributes:
        best_params_: The recommended parameters, from releases alone.
        best_estimator_: Fitted with them on the training records, or with ``protect="all"`` on
            all, with ``refit=True``.
        best_index_: The trial in ``cv_results_`` that has them. A search that ends before its plan
            may recommend what no trial has evaluated, and then has neither this nor the next.
        best_score_: ``mean_test_score`` of that trial, a noisy draw as all of them: constraints
            and an estimate from all releases choose, and another trial's draw may be better.
        guarantee_: What may be claimed, and what not.
        cv_results_: Columns, one entry a trial, for ``pandas.DataFrame``: ``params``, ``param_*``,
            ``mean_test_score`` (what was released of it, as scikit-learn signs it: accuracy, or
            the negated loss; NaN if nothing was), ``std_test_score`` (standard deviation of its
            noise, not of folds), ``rank_test_score``, and ``loss`` (what the study shows: the
            release, or an estimate of the mean loss from all releases up to it). With several
            scores these are ``mean_test_f1`` and so on, without ``loss``.
        final_score_: With ``final_score``, what was released of it: ``value`` and ``sd`` of the
            noise. A search that is resumed shows what was released then, of the model of then.
        n_valid_: Number of validation records, or persons.
        study_: Optuna's study (``backend="optuna"``).
        results_: Tune's results (``backend="ray"``).

    Example:
        >>> from scipy.stats import loguniform
        >>> from sklearn.datasets import load_digits
        >>> from sklearn.svm import SVC
        >>> X, y = load_digits(return_X_y=True)
        >>> search = PrivateSearch(SVC(), {"C": loguniform(0.1, 100)}, mu=1, n_trials=8, seed=0)
        >>> search.fit(X[:1500], y[:1500]).predict(X[1500:1502]).shape
        (2,)
        >>> search.guarantee_.protected, round(search.guarantee_.mu_spent, 9)
        (True, 1.0)
    """

    __metadata_request__fit = dict.fromkeys(  # sklearn's
        ("X_valid", "y_valid", "groups", "groups_valid"), UNUSED
    )

    @takes(PrivateSearchSettings)
    def __init__(self, given: PrivateSearchSettings) -> None:
        for name in fields_of(PrivateSearchSettings):
            setattr(self, name, getattr(given, name))

    def __setattr__(self, name: str, value: Any) -> None:
        """Takes URLs as texts that no representation prints a password of."""
        url = name in ("storage", "vault") and type(value) is str
        super().__setattr__(name, Shown(value) if url else value)

    def fit(
        self, X: Any, y: Any = None, *, X_valid: Any = None, y_valid: Any = None,
        groups: Any = None, groups_valid: Any = None, **params: Any,
    ) -> PrivateSearch:  # fmt: skip
        """Tunes, and fits the estimator with what was found on the training records.

        Args:
            X: Records (n, ...). Those that are held out of them are protected; with ``X_valid``
                all of them train, and none is.
            y: Their targets (n,).
            X_valid: Validation records (n_valid, ...), which are protected.
            y_valid: Their targets (n_valid,).
            groups: The person that each row of X belongs to (n,). Whole persons are held out and
                protected then, each with all of its rows.
            groups_valid: The same of X_valid; no person may be in both.
            **params: For the estimator's ``fit`` (``sample_weight``, ``step__sample_weight``);
                what has an entry a record is split like the records. Losses are not weighted.

        Returns:
            The search.

        Raises:
            ValueError: For settings that make no sense, or a study begun with others.
            ObjectiveFailedError: If a trial failed on validation records. What the estimator
                itself raises while it is fitted is raised as it is. Where the records that train
                are protected, a last fit that fails leaves no ``best_estimator_``, in silence.

        Warns:
            FitFailedWarning: If fits failed and count by ``error_score``; not on Ray, where the
                trials' processes keep that to themselves.
        """
        apart = {"X_valid": X_valid, "y_valid": y_valid, "groups_valid": groups_valid}
        fitting = partial(self._fit, X, y, groups, apart, params)
        del X, y, X_valid, y_valid, groups, groups_valid, apart, params
        error = _error_of(fitting)
        del fitting
        if isinstance(error, KeyboardInterrupt):
            error = KeyboardInterrupt(self._interrupted())
        if error is not None:
            raise _of_others(error)
        return self

    def _fit(self, X: Any, y: Any, groups: Any, apart: Any, params: dict[str, Any]) -> None:
        given = self._given()
        if _routing_enabled():
            params = process_routing(self, "fit", **params).estimator.fit
        check_fit_params(given.estimator, params)
        read, failed = sanitize.call(
            lambda: (names_of(X), self._records(given, X, y, groups, apart, params)), _not_read
        )
        if read is None:
            raise failed or ValueError
        names, records = read
        if groups is None:
            scored = given.protect == "validation" and bool(scores_in(given))
            way = "" if scored else "fit(X, y, groups=ids)"
            given = evolve(given, unit=unit_of_rows(given.unit, names, way))
        task = self._task(given, records)
        self._keep(*_searched(given, task, self._begin), task)

    def _begin(self, run: str, mu: float, training: float, unit: str, whom: str) -> None:
        """Counts a run before it spends anything, and says what all runs amount to.

        A run that goes on is counted once, by its most; no later fit lowers that.
        """
        before: dict[str, tuple[float, float, str]] = vars(self).get("_fits", {})
        known = before.get(run, (0.0, 0.0))
        fits = before | {run: (max(known[0], mu), max(known[1], training), whom)}
        if run not in before and math.isfinite(mu):
            for note in chain(*_together(fits, unit)):
                warn(f"fit spends anew: {note}.", PrivacyWarning)
            if others := self._other_runs({run, *before}):
                warn(
                    f"fit spends anew, and the vault holds {others} other runs: for a {unit} that "
                    f"several protect, squares of mu add up. To go on with one, give {_LASTING}.",
                    PrivacyWarning,
                )
        self._fits, self._begun = fits, run
        self._claim()

    def _claim(self) -> None:
        """Adds all runs so far, each with its most, to what the last search claims."""
        if "_found" in vars(self):
            known: Guarantee = self._found.guarantee
            others = [of for run, of in self._fits.items() if run != self._run]
            mus = [mu for mu, *_ in others]
            trained = [(training, 1, 1) for _, training, _ in others if known.trainings]
            asked = {"epsilon", "delta"} if others else set()  # of one run, not of their sum
            own = of_unit(NOTE_ALL if known.in_blocks else NOTE, known.unit)
            why, notes = _together(self._fits, known.unit)
            self.guarantee_: Guarantee = dataclasses.replace(
                known,
                mu=compose_mu([known.mu, *mus]),
                mu_spent=compose_mu([known.mu_spent, *mus]),
                trainings=(*known.trainings, *trained),
                parameters={n: v for n, v in known.parameters.items() if n not in asked},
                protected=known.protected and not why,
                reasons=(*known.reasons, *why),
                notes=(*notes, *known.notes, own),
            )

    @property
    def _lasts(self) -> bool:
        """Tells if another fit of the same settings goes on with the run of this one."""
        kept = self.vault not in (None, "memory")
        return bool(kept and self.load_if_exists and self.storage and self.study_name)

    def _other_runs(self, own: set[str]) -> int:
        """Counts runs of a lasting vault beside one that is begun there, not gone on with."""
        if self._lasts or self.vault in (None, "memory"):
            return 0
        from privbo_plugins.sessions.stored import runs_of  # it brings more than a search needs

        runs = runs_of(open_vault(self.vault, create=False))
        return sum(other.run_id not in own for other in runs)

    def _interrupted(self) -> str:
        """Says what an interrupted fit has spent, and how to go on."""
        spent = not_below(compose_mu(mu for mu, *_ in vars(self).get("_fits", {}).values()), 4)
        way = "goes on" if self._lasts else f"spends anew; with {_LASTING} it would go on"
        return f"All fits of this object have spent mu = {spent} at most; calling fit again {way}."

    def plan(
        self, search_space: Mapping[str, Any] | None = None, n_records: int | None = None,
        *, seconds_per_trial: float | None = None, n_workers: int | None = None,
    ) -> CentralPlan:  # fmt: skip
        """Tells, before any ``fit``, what a search over so many validation records would do.

        Args:
            search_space: As ``param_distributions``; None for the search's own.
            n_records: Number of validation records, or persons; with ``protect="all"`` of all.
            seconds_per_trial: How long a fit and its scoring take, if you know it: then the plan
                says how long the search does.
            n_workers: Trials that run at once; None for ``n_jobs``, or 1.

        Returns:
            The plan; printing it shows trials, releases, noise and time.

        Raises:
            ValueError: For settings that make no sense.

        Warns:
            UtilityWarning: If the noise is likely to drown the signal.
        """
        given = self._given()
        those = "validation records" if given.protect == "validation" else "records"
        integer(1).check(f"plan() reads no data: n_records=, of the {those},", n_records)
        if search_space is not None:
            given = evolve(given, param_distributions=search_space)
        task = self._task(given, Records(None, (), None, (), {}, {}))
        _, config, found = _planned(given, task, _config(given, task), n_records)
        made: CentralPlan = found
        at_once = max(given.n_jobs or 1, 1) if n_workers is None else n_workers
        return made.presented(seconds_per_trial, at_once, task.note(n_records or 0, config.mu))

    def report(self, path: str | Path) -> Path:
        """Writes an HTML page: guarantee, recommendation, what has been released, in pictures.

        Args:
            path: Where to write.

        Returns:
            The path written.

        Raises:
            ImportError: If the ``viz`` extra is not installed.
        """
        check_is_fitted(self)
        found, title = self._found, f"Private tuning report: {type(self.estimator).__name__}"
        page = records_report(title, self.guarantee_, found.history, found.values)
        return dataclasses.replace(page, status=found.status).write(path)

    def _given(self) -> PrivateSearchSettings:
        """The settings as they are now, checked as far as they can be without records.

        Raises:
            ValueError: If they make no sense.
        """
        given = PrivateSearchSettings(**self.get_params(deep=False))
        if given.sampler is not None:
            given = evolve(given, method="released-means")
        if scores_in(given) and given.protect == "validation":
            given = evolve(given, method="released-means")
        if given.n_iter is not None:
            if given.n_trials not in (None, given.n_iter):
                raise ValueError("n_iter= is another name of n_trials=: give one of them.")
            given = evolve(given, n_trials=given.n_iter)
        for name, rule in _KNOWN.items():
            if not (name == "scoring" and given.protect == "all" and callable(given.scoring)):
                rule.check(name, getattr(given, name))
        if given.vault is not None and given.vault != "memory":
            resolve_url(given.vault)
            refuse_password(str(given.vault), "a search pickles with its other settings")
        return given

    @staticmethod
    def _records(
        given: Any, X: Any, y: Any, groups: Any, apart: Any, params: dict[str, Any]
    ) -> Records:
        told_apart = any(one is not None for one in apart.values())
        check_all(given, told_apart, groups is not None)
        if given.final_score is not None and (given.protect == "all" or groups is not None):
            raise ValueError(_NO_LAST)
        if given.protect == "all":
            return all_records(X, y, params, groups)
        if told_apart:
            return given_records(given.estimator, X, y, params=params, groups=groups, **apart)
        split = {"valid_size": given.valid_size, "random_state": given.random_state}
        return held_out(given.estimator, X, y, params, groups=groups, **split)

    @staticmethod
    def _task(given: Any, records: Records) -> Task:
        estimator = clone(given.estimator)
        if records.y is None and get_tags(estimator).target_tags.required:
            raise ValueError(
                f"{type(estimator).__name__} requires y to be passed, but the target y is None."
            )
        parameters = to_parameters(given.param_distributions, estimator.get_params())
        if given.protect == "all":
            check_values(estimator, parameters)  # what fits say later is dropped
            return block_task(given, estimator, records, parameters)
        loss = to_scores(given, estimator, records.y) or to_loss(given, estimator, records.y)
        last = last_score(given, estimator, records.y)
        loss, last = own_copy((loss, last))
        if given.error_score == "raise":
            check_values(estimator, parameters)
        withholds = given.training_mu is not None
        bounds = loss.settings if isinstance(loss, RecordScores) else bounds_of(given, loss)
        whose = named(given, RecordSettings) | {"groups": records.groups}
        return Task(
            estimator, records, loss, bounds, parameters, given.error_score, withholds,
            whose=whose, last=last,
        )  # fmt: skip

    def _keep(self, found: Found, noise: float, task: Task) -> None:
        """Takes what was released, and nothing of the validation records."""
        for name in filter(_of_fit, list(vars(self))):
            delattr(self, name)  # of an earlier fit
        self.best_params_ = task.parameters.decoded(found.values)
        self._found, self._run = found, self._begun
        self._claim()
        self.cv_results_ = table_of(
            found, task.parameters, best=task.best_score, sign=task.sign, noise=noise,
            ends=task.ends,
        )  # fmt: skip
        setattr(self, "n_blocks_" if self.protect == "all" else "n_valid_", task.n_entries)
        self.__dict__.update(found.shown)
        if (place := place_of(found, task.parameters)) is not None:
            self.best_index_ = place
            of_first = next(n for n in self.cv_results_ if n.startswith("mean_test_"))
            self.best_score_ = float(self.cv_results_[of_first][place])
        self._unfitted = False
        if found.last is not None:
            self.final_score_ = found.last
        if self.refit or task.last:
            model, error = task.last_fit(self.best_params_)
            if error is not None and not task.withholds:
                raise error
            self._unfitted = error is not None  # told when it is asked for, and never by fit
            if self.refit and error is None:
                self.best_estimator_ = model
            if hasattr(vars(self).get("best_estimator_"), "feature_names_in_"):
                self.feature_names_in_ = self.best_estimator_.feature_names_in_

    # What the fitted estimator does ---------------------------------------------------------

    def score(self, X: Any, y: Any = None, **params: Any) -> float:
        """The fitted estimator's score on the given records, as ``scoring``. It is not private.

        Args:
            X: Records (n, ...), which no guarantee covers here.
            y: Their targets.
            **params: For the estimator's ``score``, where metadata routing is enabled.
        """
        check_is_fitted(self)
        _raise_for_params(params, self, "score")
        if _routing_enabled():
            params = process_routing(self, "score", **params).estimator.score
        scorer = check_scoring(self.best_estimator_, scoring=to_scorer(self.scoring, self.refit))
        classes = getattr(self.best_estimator_, "classes_", None)
        if isinstance(classes, np.ndarray) and np.asarray(y).dtype.kind != classes.dtype.kind:
            y = as_in_training(classes, y, labels=True)  # texts of numbers, as `fit` read them
        return scorer(self.best_estimator_, X, y, **params)  # type: ignore[no-any-return]

    predict = _of_estimator("predict")
    predict_proba = _of_estimator("predict_proba")
    predict_log_proba = _of_estimator("predict_log_proba")
    decision_function = _of_estimator("decision_function")
    score_samples = _of_estimator("score_samples")
    transform = _of_estimator("transform")
    inverse_transform = _of_estimator("inverse_transform")

    @available_if(_has("set_output"))  # type: ignore[untyped-decorator]  # of a package without types
    def set_output(self, *, transform: str | None = None) -> PrivateSearch:
        """As of the estimator, before and after ``fit``.

        Args:
            transform: "default", "pandas" or "polars"; None changes nothing.
        """
        for name in ("estimator", "best_estimator_"):
            if hasattr(self, name):
                getattr(self, name).set_output(transform=transform)
        return self

    # What scikit-learn asks -----------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        """Says why an attribute is missing: before ``fit``, or one of another tool's."""
        if _of_fit(name):
            check_is_fitted(self)
        if name == "best_estimator_" and vars(self).get("_unfitted"):
            raise AttributeError(_UNFITTED)
        return no_attribute(self, name)

    @property
    def classes_(self) -> Any:
        """Class labels, of a classifier that was fitted."""
        return self.best_estimator_.classes_

    @property
    def n_features_in_(self) -> int:
        """Number of features that ``fit`` has seen."""
        return int(self.best_estimator_.n_features_in_)

    def __sklearn_is_fitted__(self) -> bool:
        """Checks whether there is a recommendation."""
        return "best_params_" in vars(self)

    def __sklearn_tags__(self) -> Any:
        """The estimator's own."""
        tags = get_tags(self.estimator)
        tags.array_api_support = False
        tags.target_tags.multi_output = False  # a record has one loss
        tags.non_deterministic = True  # noise is never drawn twice
        return tags

    def get_metadata_routing(self) -> MetadataRouter:
        """Returns the metadata that goes to the estimator: those of ``fit`` and of ``score``."""
        same = MethodMapping()
        same.add(caller="fit", callee="fit").add(caller="score", callee="score")
        return MetadataRouter(owner=self).add(estimator=self.estimator, method_mapping=same)


def _error_of(call: Callable[[], None]) -> BaseException | None:
    """Returns the exception that a call raises, an interruption too.

    Raised outside, so that it has no context either.
    """
    try:
        call()
    except _ToldError as failed:
        return failed.error
    except BaseException as error:
        clear_frames(error.__traceback__)  # a host's own may hold the objective
        return error
    return None


def _not_read(error: BaseException) -> Exception:
    """Tells why records are refused, but for what a container's own code says."""
    *_, (frame, _) = walk_tb(error.__traceback__)
    where = frame.f_globals.get("__name__", "")
    quotes = where == "sklearn.utils.validation" and isinstance(error, TypeError)  # no length
    ours = where.partition(".")[0] in _READERS and not quotes
    if ours and isinstance(error, ValueError | TypeError):
        return type(error)(*error.args)
    return ValueError(
        "X, y or what fit gets beside them could not be read: a container's own code raised "
        f"{sanitize.public_name(error)}. Give arrays, pandas tables or lists."
    )


_READERS = {"privbo_plugins", "sklearn_search", "sklearn"}


def _of_others(error: BaseException) -> BaseException:
    """An exception with the frames that were called by ours, and none that leads to records.

    A frame knows its caller: what is cut off a traceback can still be reached, so it is emptied.
    """
    trace = kept = error.__traceback__
    frame = None
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] == __package__:
            frame, kept = trace.tb_frame, trace.tb_next
        trace = trace.tb_next
    while frame is not None:
        with suppress(RuntimeError):  # one that is still running: the caller's
            frame.clear()
        frame = frame.f_back
    return error.with_traceback(kept)


class _ToldError(Exception):
    """Carries what may be told: an estimator's own exception, with its own frames."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def _together(
    fits: Mapping[str, tuple[float, float, str]], unit: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Composes runs: why no figure holds for all of them, or else what holds.

    For validation records and, where any run says it, for training records. A run that protects
    rows bounds nothing for persons, nor one of validation records for all.
    """
    mus, trainings, whom = zip(*fits.values(), strict=True)
    kinds = sorted(set(whom))
    if len(kinds) > 1:
        units = {kind.partition(" ")[2].partition(" (")[0] for kind in kinds}
        why = ["one that protects rows bounds nothing for persons"] * (len(units) > 1)
        if not all(kind.startswith("all ") for kind in kinds):
            why.append("one of validation records bounds nothing for those that trained")
        return (_MIXED.format(len(fits), kinds[0], kinds[-1], ", and ".join(why)),), ()
    if whom[0].startswith("all "):  # which no training costs more
        return (), together(mus, unit)
    own = together(trainings, f"training {unit}") if any(map(math.isfinite, trainings)) else ()
    return (), (*(note + _UNSEEN for note in together(mus, f"validation {unit}")), *own)


def _searched(given: Any, task: Task, begin: Callable[..., None]) -> tuple[Found, float]:
    """Runs the search's backend.

    Args:
        given: The settings.
        task: What a trial does.
        begin: Takes the run's name, and its most ``mu`` and ``training``, before it spends any.

    Returns:
        What it found, and the noise of a released value (NaN where none is planned).

    Raises:
        _ToldError: If a trial failed for a reason that may be told, unlike the host's own words.
    """
    config = _config(given, task)
    unit, made, plan = _planned(given, task, config, task.n_protected)
    warn_of_rare_class(given, task.estimator, task.records.y)
    most = max(most_trainings(None), most_trainings(plan))
    training = math.inf if given.training_mu is None else given.training_mu * math.sqrt(most)
    backend = import_module(f"sklearn_search._{given.backend}")
    if given.protect == "all" and given.backend == "optuna":
        given = evolve(given, n_jobs=None)  # blocks at once, and trials one after another
    whom = f"{given.protect} {plural(unit)}" + " by groups=" * (task.records.groups is not None)
    if given.protect != "all":  # what one run holds out, another may train on
        split = task.records.split
        seed = split.get("random_state")
        how = "given apart" if split["given"] else f"held out by random_state={seed}"
        whom += f" ({how}: {split['train']} train, {split['valid']} validate)"
    begun = partial(begin, mu=made.mu, training=training, unit=unit, whom=whom)
    try:
        found: Found = backend.search(given, task, config, plan.n_trials, begun)
    except Exception:
        if task.failure is not None:
            raise _ToldError(task.failure) from None
        raise
    with paid_for():
        task.warn_of_failed_fits()
    return found, plan.value_noise if plan.mu_value else math.nan


def _planned(given: Any, task: Task, config: Any, n_records: Any) -> tuple[str, Any, Any]:
    """The unit, the algorithm's settings, and the plan that it makes of them."""
    made = entry(given.method).load_config()(**config)
    entries = task.deal(given.n_blocks, n_records, made.mu)
    unit, for_plan = Unit.of(RecordSettings(**task.whose), made, way="")
    plan = planned(for_plan, task.parameters.space, entries, unit)
    if isinstance(task.loss, RecordLoss):

        def noise_of(n_blocks: int) -> float:
            made = algorithm_of(for_plan).make_plan(for_plan, task.parameters.space, n_blocks)
            return float(made.value_noise)

        blocks = (entries, n_records, noise_of) if given.protect == "all" else None
        most = task.ends[1] - task.ends[0]
        warn_of_noise(task.loss, given.y_range, plan.value_noise, most, blocks)
    return unit.word, made, plan


def _config(given: Any, task: Task) -> dict[str, Any]:
    """The algorithm's settings by name.

    Raises:
        ValueError: For one that the method has no use for, or lacks.
    """
    known = fields_of(entry(given.method).load_config())
    fields = {**fields_of(MeansConfig), **fields_of(GIBOConfig)}
    values = {name: getattr(given, name) for name in fields if name != "scores"}
    share = _LAST_SHARE if given.final_share is None else given.final_share
    values["final_share"] = 0.0 if given.final_score is None else share
    for name in values:
        if name not in known and values[name] != fields[name].default:
            raise ValueError(_IDLE[given.method].format(name.replace("share", "score")))
    if given.n_trials is None and given.method != "dp-gibo":
        raise ValueError("This search releases one mean a trial: say how many, n_trials=60.")
    own = given.estimator.get_params()
    values["incumbent"] = task.parameters.incumbent(given.incumbent, own)
    values |= task.bounds
    return {name: value for name, value in values.items() if name in known}


_IDLE = {
    "dp-gibo": '{}= needs method="released-means", or a sampler=: dp-gibo has no use for it.',
    "released-means": "{}= is a setting of dp-gibo, and this search releases means.",
}
"""Says of a setting of the other method where it belongs."""
