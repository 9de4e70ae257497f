"""What all adapters read from Optuna's studies and trials."""

from __future__ import annotations

import copy
import sys
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from types import FrameType
from typing import Any, TypeVar

import numpy as np
import optuna
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from privbo_plugins.errors import PrivacyError, VaultError
from privbo_plugins.files import LogHead
from privbo_plugins.privacy.claim import PrivacyGuarantee
from privbo_plugins.store.log import SPLIT
from privbo_plugins.store.run import Run
from privbo_plugins.store.vault import Vault

Kind = TypeVar("Kind", bound=PrivacyGuarantee)

GUARANTEE_ATTR = "privbo:guarantee"
"""Study attribute with the guarantee as a paragraph, for the dashboard."""

EXPOSED_ATTR = "privbo:exposed"
"""Study attribute with the reason why nothing may be claimed for what it holds."""

JOINED_ATTR = "privbo:federation"
"""System attribute of a study that has taken part in a federation."""

HEAD_ATTR, PLACE_ATTR = "privbo:head", "privbo:place"
"""Study attributes: the end of a run's chain of releases, and where its vault has lain."""

SPLIT_ATTR = SPLIT
"""Study attribute: how a search for scikit-learn has told records apart."""

_OPTUNA_SEARCH = "ray.tune.search.optuna.optuna_search"
_PROXY = "optuna.storages._grpc."
_STUDY_TABLES = "studies", "trials", "trial_values"
_SEARCH_CV = "optuna_integration.sklearn.sklearn"


def show_guarantee(study: Study, guarantee: Kind, *, write: bool = True) -> Kind:
    """Writes the guarantee's lasting paragraph into the study, if it has changed.

    Returns:
        The guarantee with the study's name.
    """
    if write and study.user_attrs.get(GUARANTEE_ATTR) != guarantee.lasting:
        study.set_user_attr(GUARANTEE_ATTR, guarantee.lasting)
    return replace(guarantee, where=f"{study.study_name} (Optuna)")


def key_of(trial: FrozenTrial) -> str:
    """The vault's name of a trial; a retry keeps the name of the trial that it repeats."""
    return str(trial.system_attrs.get("failed_trial", trial.number))


def completed(study: Study) -> list[FrozenTrial]:
    """Returns the trials of any worker that have a value."""
    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))


def still(trial: FrozenTrial) -> FrozenTrial:
    """A trial as it is now: its own thread may go on writing into what a storage hands out."""
    if trial.state.is_finished():
        return trial
    copied = copy.copy(trial)
    vars(copied).update({n: dict(held) for n, held in vars(trial).items() if type(held) is dict})
    return copied


def frozen_of(trial: optuna.Trial) -> FrozenTrial:
    return trial.study._storage.get_trial(trial._trial_id)


def failures_in(trials: Sequence[FrozenTrial]) -> int:
    """Number of trials of any worker that failed or were pruned."""
    return sum(trial.state in (TrialState.FAIL, TrialState.PRUNED) for trial in trials)


def stop(study: Study) -> None:
    """Ends the loop that runs the trial, after it."""
    with suppress(RuntimeError):  # ask/tell has no loop to stop; Optuna raises after storing
        study.stop()


def own_name(study: Study) -> str:
    """Returns the name that distinguishes a study from its copies."""
    return f"{study.study_name}/{study._study_id}"


def whole(study: Study) -> Study:
    """The study behind the view of one bracket that HyperbandPruner hands to samplers."""
    return getattr(study, "_study", study)


def same(told: float, published: float) -> bool:
    return told == published or (np.isnan(told) and np.isnan(published))


# Where a call comes from ------------------------------------------------------------------------


def _callers() -> Iterator[FrameType]:
    """Yields the frames that a call comes from, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _stands_in(frame: FrameType | None, module: str) -> bool:
    return frame is not None and frame.f_globals.get("__name__") == module


def refuse_optuna_search(name: str) -> None:
    """Ray Tune's OptunaSearch tells plain floats, so nothing could be claimed for its trials."""
    if _OPTUNA_SEARCH not in sys.modules:
        return
    if any(_stands_in(frame, _OPTUNA_SEARCH) for frame in _callers()):
        raise PrivacyError(
            f"{name} cannot protect anything inside Ray Tune's OptunaSearch, which gives it "
            "what trials have already reported. Use the searcher of the same algorithm: "
            f"from raytune_searchers import {name.removesuffix('Sampler')}Search; "
            "tune.Tuner(search.private(trainable), ...). No trial has been run."
        )


def refuse_search_cv(name: str) -> None:
    """OptunaSearchCV stores its own scores, of every fold, so nothing could be claimed for them.

    Called wherever Optuna calls a sampler: in threads only the objective's own calls show whose
    trial it is.
    """
    if _SEARCH_CV in sys.modules and _of_search_cv():
        raise PrivacyError(
            f"{name} cannot protect anything inside OptunaSearchCV, whose objective is its own: "
            "it stores the mean score and the score of every fold as they are. Write an "
            "objective that fits the model and returns what is to be protected, and wrap it: "
            "study.optimize(sampler.private(objective)). No model has been scored."
        )


def _of_search_cv() -> bool:
    """Checks whether the innermost loop that a call comes from runs OptunaSearchCV's objective."""
    for frame in _callers():
        if _stands_in(frame, _SEARCH_CV):
            return True
        if frame.f_code is Study.optimize.__code__:
            return _stands_in(frame.f_back, _SEARCH_CV)
    return False


def trials_of_loop() -> int | None:
    """``n_trials`` of the ``study.optimize`` that this call comes from; None if unknown.

    In threads (``n_jobs``) a call does not show what loop it comes from.
    """
    loops = (frame for frame in _callers() if frame.f_code is Study.optimize.__code__)
    loop = next(loops, None)
    asked = None if loop is None else loop.f_locals.get("n_trials")
    return asked if isinstance(asked, int) else None


# What cannot be tuned ---------------------------------------------------------------------------


def refuse_multi_objective(study: Study, name: str) -> None:
    if len(study.directions) > 1:
        raise ValueError(
            f"{name} tunes one objective; this study has {len(study.directions)} directions. "
            "Create it with direction= instead of directions=, and make one number of what the "
            "objective returns."
        )


def refuse_shared_database(study: Study, vault: Vault) -> None:
    """A vault in the study's own database would be read by every reader of the study."""
    backend = getattr(study._storage, "_backend", study._storage)
    engine = getattr(backend, "engine", None)
    sqlalchemy = sys.modules.get("sqlalchemy")  # not loaded: then no storage has an engine
    seen = sqlalchemy and isinstance(engine, sqlalchemy.Engine) and vault.lies_in(engine)
    behind = type(backend).__module__.startswith(_PROXY)  # which does not say what is behind it
    if seen or (behind and vault.lies_beside(*_STUDY_TABLES)):
        raise VaultError(
            "The vault and the study lie in the same database, so readers of the study could "
            "read what the vault keeps apart: raw losses, or who was asked. Give the "
            "vault a database of its own, for example "
            "vault='sqlite:///private.db'."
        )


def next_number(study: Study) -> int:
    """The number of the trial that the study runs next: a waiting one, or a new one."""
    trials = study.get_trials(deepcopy=False)
    waiting = (trial.number for trial in trials if trial.state == TrialState.WAITING)
    return min(waiting, default=len(trials))


# A study as the guard of its run ----------------------------------------------------------------


class StudyRollbackGuard:
    """Reads and writes the attributes of one study, which all its workers share.

    Args:
        study: The study; only its storage is remembered, and not kept alive.
        run_id: The run that it shows.
    """

    def __init__(self, study: Study, run_id: str) -> None:
        self._storage = weakref.ref(study._storage)
        self._study = study._study_id
        self._head = f"{HEAD_ATTR}:{run_id[:8]}"
        self._place = f"{PLACE_ATTR}:{run_id[:8]}:"

    def _opened(self) -> Any:
        storage = self._storage()
        if storage is None:
            raise VaultError("The study of this run no longer exists; nothing can be released.")
        return storage

    def head(self) -> LogHead:
        """The furthest head that any worker has shown, and the places of all their vaults."""
        attrs = self._opened().get_study_user_attrs(self._study)
        places = [value for name, value in attrs.items() if name.startswith(self._place)]
        return LogHead.shown(attrs.get(self._head), places)

    def show(self, head: LogHead) -> None:
        """Remembers a head."""
        self._opened().set_study_user_attr(self._study, self._head, [head.n, head.digest])

    def show_place(self, place: str) -> None:
        """Remembers a place."""
        self._opened().set_study_user_attr(self._study, self._place + place[:8], place)


def guard(study: Study, run: Run) -> None:
    """Has a study remember how far a run has come; no backup of a vault in memory is restored."""
    if not run.vault.in_memory:
        run.guarded_by(StudyRollbackGuard(study, run.run_id))
