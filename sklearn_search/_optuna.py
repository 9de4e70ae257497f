"""The trials of a search as a study of Optuna's."""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from logging import ERROR, getLogger
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from optuna_samplers import DPGIBOSampler, private_objective
from optuna_samplers._losses import CARRIED, RELEASE_ATTR, ROLE_ATTR, SCORES_ATTR
from optuna_samplers._sampler import StudySampler
from optuna_samplers._study import SPLIT_ATTR
from privbo_plugins.errors import ObjectiveFailedError, paid_for
from privbo_plugins.sanitize import OfAllThreads
from privbo_plugins.sessions.run_settings import differing
from privbo_plugins.spaces import Categorical, Dimension, Float
from sklearn_search._found import Found
from sklearn_search._records import Task, progress

SCORING_FAILED = (
    "A trial failed while it scored the validation records, and nothing more was released. What "
    "was raised is withheld, because exception texts quote data; to see it, fit "
    "clone(estimator).set_params(...) on the training records and predict the others by yourself."
)


def search(given: Any, task: Task, config: Any, planned: int, begin: Any) -> Found:
    """Runs the trials of a plan, or those that a study still lacks.

    Args:
        given: The search's settings.
        task: What a trial does.
        config: The algorithm's settings by name.
        planned: Trials that the plan has.
        begin: Takes the name of the run before anything is spent.

    Raises:
        ValueError: If a study of this name was begun with another split.
    """
    declared = {name: _distribution(dim) for name, dim in task.parameters.dimensions.items()}
    kept = {
        "search_space": declared, "seed": given.seed, "vault": given.vault,
        "record_ids": task.records.labels, **task.whose,
    }  # fmt: skip

    def objective(trial: optuna.Trial) -> Any:
        return task.losses({name: _suggested(trial, name, d) for name, d in declared.items()})

    verbs: Any
    sampler: BaseSampler
    private: Callable[[optuna.Trial], float]
    if given.method == "dp-gibo":
        verbs = sampler = own = DPGIBOSampler(**config, **kept)
        private = own.private(objective)
    else:
        verbs = private = private_objective(objective, **config, **kept)
        sampler = _own_sampler(given)
    with nullcontext() if given.verbose > 1 else _quiet:
        study = _study(given, sampler, task, verbs)
        begin(verbs._state(study).session.run.run_id)
        _run(given, study, private, planned, verbs)
        found = _found(given, study, verbs, task)
        if given.vault in (None, "memory"):  # losses that wait there no later search can find
            verbs.purge(study)
        return found


def _own_sampler(given: Any) -> BaseSampler:
    """The user's, which serves this study only; TPE where there is none.

    Raises:
        ValueError: If it is no sampler, or releases values itself.
    """
    if given.sampler is None:
        return optuna.samplers.TPESampler(seed=given.seed)
    if not isinstance(given.sampler, BaseSampler) or isinstance(given.sampler, StudySampler):
        raise ValueError(
            f"sampler= takes one of Optuna's own samplers, which is told noisy means, got a "
            f"{type(given.sampler).__name__}. For DP-GIBO leave it out: method='dp-gibo', with "
            "the sampler's settings as the search's own."
        )
    return copy.deepcopy(given.sampler)


def _study(given: Any, sampler: Any, task: Task, verbs: Any) -> Study:
    study = optuna.create_study(
        storage=given.storage, study_name=given.study_name, sampler=sampler,
        load_if_exists=bool(given.load_if_exists),
        direction="maximize" if task.sign > 0 else "minimize",
    )  # fmt: skip
    begun = bool(study.get_trials(deepcopy=False))  # before what another worker writes is read
    split, before = dict(task.split), study.user_attrs.get(SPLIT_ATTR)
    if before is None and not begun:
        study.set_user_attr(SPLIT_ATTR, before := split)
    if before == split:
        before = _kept(verbs._state(study).session.run, split)
    if before != split:
        apart = differing(before, split) if isinstance(before, dict) else "before this search"
        raise ValueError(
            f"The study was begun with the records told apart in another way ({apart}): row i "
            "would be another record, and the guarantee void. Give fit the same records with the "
            "same settings of the split, or begin a new study."
        )
    return study


def _kept(run: Any, split: dict[str, Any]) -> Any:
    """Returns the split that a run began with, by its vault: a study's attribute can be edited.

    None of a run that something else than a search began.
    """
    spent = run.charged  # before what another worker marks is read
    with run.transaction() as tx:
        known = tx.marks(SPLIT_ATTR)
        if known:
            return json.loads(known[0])
        if spent:
            return None
        tx.mark(SPLIT_ATTR, json.dumps(split, sort_keys=True))
    return split


def _run(given: Any, study: Study, private: Any, planned: int, verbs: Any) -> None:
    """Runs the trials, at once those of one step only: others would be fitted for nothing.

    Optuna loses what its last threads raise, so it is kept; where anything else was lost, one
    thread goes on, and raises it.
    """
    error: ObjectiveFailedError | None = None
    end = time.monotonic() + (math.inf if given.timeout is None else given.timeout)
    session, at_once = verbs._state(study).session, given.n_jobs or 1
    raised: list[Exception] = []
    done = len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)))
    line = {"total": planned, "initial": done, "desc": "private trials"}
    with progress(given.verbose == 1, **line) as moved:
        acts = [_keeping(act, study, raised) for act in (private, moved, *(given.callbacks or ()))]
        try:
            while not verbs.finished(study) and end > time.monotonic() and not study._stop_flag:
                told = session.run.n_told()
                study.optimize(
                    acts[0], None if at_once == 1 else max(1, session.open_places()),
                    end - time.monotonic(), at_once, callbacks=acts[1:],
                )  # fmt: skip
                if raised:
                    raise raised[0]
                at_once = at_once if session.run.n_told() > told else 1
        except ObjectiveFailedError as failed:
            error = type(failed)(SCORING_FAILED)
        finally:
            raised.clear()
    if error is not None:
        raise error


def _keeping(act: Callable[..., Any], study: Study, raised: list[Exception]) -> Callable[..., Any]:
    """The same function of trials or a callback; what it raises is kept, and ends the study."""

    def kept(*args: Any) -> Any:
        try:
            return act(*args)
        except optuna.TrialPruned:
            raise
        except Exception as error:
            raised.append(error)
            study.stop()
            raise

    return kept


@paid_for()
def _found(given: Any, study: Study, verbs: Any, task: Task) -> Found:
    recommended = verbs.recommend(study)
    if given.refit or task.last:
        verbs._charge_refit(study)
    last = task.released_last(recommended, lambda *told: verbs.release_score(study, *told))
    trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    rows = [
        (t.params, t.values[0], _released(t), t.user_attrs.get(SCORES_ATTR, {})) for t in trials
    ]
    told = verbs.guarantee(study), rows, {"study_": study}
    return Found(recommended, *told, verbs.history(study), verbs.status(study), last)


def _released(trial: FrozenTrial) -> float:
    """Reads what was released: the draw, or the value where that is no estimate; or NaN."""
    carried = trial.user_attrs[ROLE_ATTR].endswith(CARRIED)
    return float(trial.user_attrs.get(RELEASE_ATTR, math.nan if carried else trial.values[0]))


def _distribution(dim: Dimension) -> BaseDistribution:
    if isinstance(dim, Categorical):
        return CategoricalDistribution(dim.choices)
    if isinstance(dim, Float):
        return FloatDistribution(dim.low, dim.high, log=dim.log, step=dim.step)
    return IntDistribution(dim.low, dim.high, log=dim.log, step=dim.step)


def _suggested(trial: Any, name: str, wanted: BaseDistribution) -> Any:
    if isinstance(wanted, CategoricalDistribution):
        return trial.suggest_categorical(name, wanted.choices)
    numeric: Any = wanted
    suggest = trial.suggest_float if isinstance(wanted, FloatDistribution) else trial.suggest_int
    return suggest(name, numeric.low, numeric.high, step=numeric.step, log=numeric.log)


@contextmanager
def _few_lines() -> Iterator[None]:
    """Warnings of Optuna's, but of what fit itself raises; no line for each trial."""
    of_trials = getLogger("optuna.study._optimize")
    before, own = optuna.logging.get_verbosity(), of_trials.level
    optuna.logging.set_verbosity(max(before, optuna.logging.WARNING))
    of_trials.setLevel(ERROR)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
        of_trials.setLevel(own)


_quiet = OfAllThreads(_few_lines)
"""Fits may run at the same time."""
