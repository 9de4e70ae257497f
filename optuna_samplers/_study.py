"""What all adapters read from Optuna's studies and trials."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType

import numpy as np
import optuna
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from privbo_plugins.errors import PrivacyError, VaultError
from privbo_plugins.store.vault import Vault

GUARANTEE_ATTR = "privbo:guarantee"
"""Study attribute with the guarantee as a paragraph, for the dashboard."""

EXPOSED_ATTR = "privbo:exposed"
"""Study attribute with the reason why nothing may be claimed for what it holds."""

HEAD_ATTR, PLACE_ATTR = "privbo:head", "privbo:place"
"""Study attributes: the end of a run's chain of releases, and where its vault has lain."""

_OWN_STUDY_ATTRS = {
    "privbo:run",
    "privbo:ldp",
    "privbo:duets",
    "privbo:federation",
    GUARANTEE_ATTR,
    EXPOSED_ATTR,
    HEAD_ATTR,
    PLACE_ATTR,
}
"""All user attributes that samplers and wrapped objectives give a study, up to a run's name."""

_OWN_ATTRS = {"privbo:play", "privbo:vouched", "privbo:role", "privbo:agent", "privbo:epoch"}
"""All user attributes that samplers and wrapped objectives give a trial."""

_NAMED = 5
"""Attributes that a note names, at most."""

_OPTUNA_SEARCH = "ray.tune.search.optuna.optuna_search"


def show_guarantee(study: Study, guarantee: object) -> None:
    """Writes the guarantee's paragraph into the study, if it has changed."""
    if study.user_attrs.get(GUARANTEE_ATTR) != str(guarantee):
        study.set_user_attr(GUARANTEE_ATTR, str(guarantee))


def key_of(trial: FrozenTrial) -> str:
    """The vault's name of a trial; a retry keeps the name of the trial that it repeats."""
    return str(trial.system_attrs.get("failed_trial", trial.number))


def frozen_of(trial: optuna.Trial) -> FrozenTrial:
    return trial.study._storage.get_trial(trial._trial_id)


def outputs_of(trial: FrozenTrial) -> list[str]:
    """Operations that must have put something into a trial besides parameters and value.

    A pruned trial's value is what it has reported last, unless it was added from elsewhere.
    """
    found = []
    if trial.state == TrialState.PRUNED and trial.values and not _reported(trial):
        found.append("add_trial")
    if trial.intermediate_values:
        found.append("report")
    if not set(trial.user_attrs) <= _OWN_ATTRS:
        found.append("set_user_attr")
    if trial.constraints:
        found.append("set_constraint")
    return found


def must_be_released(trial: FrozenTrial) -> bool:
    """Whether a trial has a value to compare; storages show one shortly before it is complete."""
    shown = bool(trial.values) and trial.state != TrialState.PRUNED
    return shown or trial.state == TrialState.COMPLETE


def _reported(trial: FrozenTrial) -> bool:
    reports = trial.intermediate_values
    return bool(reports) and same(trial.values[0], reports[max(reports)])


def failures_in(trials: Sequence[FrozenTrial]) -> int:
    """Number of trials that failed or were pruned, whoever ran them."""
    return sum(trial.state in (TrialState.FAIL, TrialState.PRUNED) for trial in trials)


def attributes_note(study: Study) -> list[str]:
    """What to say of study attributes that somebody else wrote: their names, if there are any."""
    own = {name for name in study.user_attrs if _without_run(name) in _OWN_STUDY_ATTRS}
    others = sorted(set(study.user_attrs) - own)
    if not others:
        return []
    more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
    return [
        "the study holds attributes which this sampler did not write and which are not covered: "
        f"{', '.join(others[:_NAMED])}{more}"
    ]


def _without_run(name: str) -> str:
    """``privbo:head`` of ``privbo:head:1f2e3d4c``."""
    return ":".join(name.split(":")[:2])


def whole(study: Study) -> Study:
    """The study behind the view of one bracket that HyperbandPruner hands to samplers."""
    return getattr(study, "_study", study)


def same(told: float, published: float) -> bool:
    return told == published or (np.isnan(told) and np.isnan(published))


def refuse_optuna_search(name: str) -> None:
    """Ray Tune's OptunaSearch tells plain floats, so nothing could be claimed for its trials."""
    if _OPTUNA_SEARCH not in sys.modules:
        return
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") != _OPTUNA_SEARCH:
        frame = frame.f_back
    if frame is not None:
        raise PrivacyError(
            f"{name} cannot protect anything inside Ray Tune's OptunaSearch, which gives it "
            "what trials have already reported. Use the searcher of the same algorithm: "
            f"from raytune_searchers import {name.removesuffix('Sampler')}Search; "
            "tune.Tuner(search.private(trainable), ...). No trial has been run."
        )


def refuse_multi_objective(study: Study, name: str) -> None:
    if len(study.directions) > 1:
        raise ValueError(
            f"{name} tunes one objective; this study has {len(study.directions)} directions."
        )


def refuse_shared_database(study: Study, vault: Vault) -> None:
    """A vault in the study's own database would be read by whoever reads the study."""
    backend = getattr(study._storage, "_backend", study._storage)
    engine = getattr(backend, "engine", None)
    sqlalchemy = sys.modules.get("sqlalchemy")  # not loaded: then no storage has an engine
    if sqlalchemy and isinstance(engine, sqlalchemy.Engine) and vault.lies_in(engine):
        raise VaultError(
            "The vault and the study lie in the same database, so whoever reads the study could "
            "read what the vault keeps apart: raw losses, or who was asked. Give the "
            "vault a database of its own, for example "
            "vault='sqlite:///private.db'."
        )


def next_number(study: Study) -> int:
    """The number of the trial that the study runs next: a waiting one, or a new one."""
    trials = study.get_trials(deepcopy=False)
    waiting = (trial.number for trial in trials if trial.state == TrialState.WAITING)
    return min(waiting, default=len(trials))
