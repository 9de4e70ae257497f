"""What all adapters read from Optuna's studies and trials."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from types import FrameType

import numpy as np
import optuna
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from optuna_samplers._space import CONSTANT_CHANGED
from privbo_plugins.errors import PrivacyError, VaultError
from privbo_plugins.privacy.guarantee import PrivacyGuarantee
from privbo_plugins.privacy.statement import legible
from privbo_plugins.shown import Shown, TrialRecord, complaints
from privbo_plugins.store.vault import Vault

GUARANTEE_ATTR = "privbo:guarantee"
"""Study attribute with the guarantee as a paragraph, for the dashboard."""

EXPOSED_ATTR = "privbo:exposed"
"""Study attribute with the reason why nothing may be claimed for what it holds."""

JOINED_ATTR = "privbo:federation"
"""System attribute of a study that has taken part in a federation."""

HEAD_ATTR, PLACE_ATTR = "privbo:head", "privbo:place"
"""Study attributes: the end of a run's chain of releases, and where its vault has lain."""

BESIDE = "trials hold data beside the reward that was not declared public"
"""Why nothing is claimed of a study of rewards whose trials hold more."""

_NUMBER = r"(-?\d+(\.\d+)?(e[-+]?\d+)?|null)"
_ID, _SHORT_ID = '"[0-9a-f]{32}"', "[0-9a-f]{8}"
_EPOCH = ", ".join(
    f'"{name}": {_NUMBER}'
    for name in ("components", "down", "epoch", "inducing", "length", "per_agent", "share", "up")
)

_OWN_STUDY_ATTRS = re.compile(
    "|".join(
        (
            rf'privbo:run {{"run": {_ID}, "vault": {_ID}}}',
            rf'privbo:ldp {{"run": {_ID}, "study": STUDY, "vault": {_ID}}}',
            rf'privbo:duets {{"active_share": {_NUMBER}, "agents": \d+, "epoch": \d+, '
            rf'"epochs": \[({{{_EPOCH}}}(, )?)*\], "reals_down": {_NUMBER}, '
            rf'"reals_per_agent": {_NUMBER}, "reals_up": {_NUMBER}}}',
            r'privbo:split {("by": \d+, )?"given": (true|false), "train": \d+, "valid": \d+}',
            f'{GUARANTEE_ATTR} "[^\n]*"',
            f'{EXPOSED_ATTR} "({re.escape(BESIDE)}|{re.escape(CONSTANT_CHANGED)})"',
            rf'{HEAD_ATTR}:{_SHORT_ID} \[\d+, "([0-9a-f]{{64}})?"\]',
            rf'{PLACE_ATTR}:({_SHORT_ID}):(?P<place>{_SHORT_ID}) "(?P=place)[0-9a-f]{{16}}"',
        )
    ).replace("STUDY", '"(?P<study>.*)"')
)
"""User attributes that samplers and wrapped objectives give a study, each with its JSON."""

DECLARABLE = frozenset({"report", "should_prune", "set_user_attr", "set_constraint"})
"""Operations on a guarded trial whose caller may declare what it passes public."""

_LONGEST_PLACE = 80
_LARGEST = 2**31

_NAMED = 5
"""Attributes that a note names, at most."""

_OPTUNA_SEARCH = "ray.tune.search.optuna.optuna_search"
_FILE = "artifacts:"
"""What Optuna calls a file that was uploaded to a study, up to its id."""

_PROXY = "optuna.storages._grpc."
_STUDY_TABLES = "studies", "trials", "trial_values"
_SEARCH_CV = "optuna_integration.sklearn.sklearn"


def show_guarantee(study: Study, guarantee: PrivacyGuarantee) -> None:
    """Writes the guarantee's lasting paragraph into the study, if it has changed."""
    if study.user_attrs.get(GUARANTEE_ATTR) != guarantee.lasting:
        study.set_user_attr(GUARANTEE_ATTR, guarantee.lasting)


def key_of(trial: FrozenTrial) -> str:
    """The vault's name of a trial; a retry keeps the name of the trial that it repeats."""
    return str(trial.system_attrs.get("failed_trial", trial.number))


def completed(study: Study) -> list[FrozenTrial]:
    """Returns the trials of any worker that have a value."""
    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))


def frozen_of(trial: optuna.Trial) -> FrozenTrial:
    return trial.study._storage.get_trial(trial._trial_id)


def operation_on(operation: str, place: object) -> str:
    """An operation and the step, attribute or constraint that it writes to: ``report(3)``.

    Example:
        >>> operation_on("set_user_attr", "host")
        'set_user_attr(host)'
    """
    text = str(place)
    if len(text) > _LONGEST_PLACE or not text.isprintable():
        text = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{operation}({text})"


def kind_of(operation: str) -> str:
    """``report`` of ``report(3)``."""
    return operation.partition("(")[0]


def outputs_of(trial: FrozenTrial, own: Collection[str]) -> list[str]:
    """Operations that must have put something into a trial besides parameters and value.

    A pruned trial's value is what it has reported last, unless it was added from elsewhere.

    Args:
        trial: The trial.
        own: Attributes that are the plugin's own, and hold what the plugin writes there.
    """
    found = []
    if trial.state == TrialState.PRUNED and trial.values and not _reported(trial):
        found.append("add_trial")
    found += [operation_on("report", step) for step in trial.intermediate_values]
    found += [operation_on("set_user_attr", n) for n in trial.user_attrs if n not in own]
    found += [operation_on("set_constraint", name) for name in trial.constraints]
    if any(_is_odd(name, value) for name, value in trial.system_attrs.items()):
        found.append("set_system_attr")
    return found


def is_count(value: object) -> bool:
    """Checks whether a value is the number of something, as epochs, agents and rows have."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST


def is_draw(value: object) -> bool:
    """Checks whether a value is an epoch, an agent and the number of its draw, or None."""
    return value is None or (
        isinstance(value, list | tuple) and len(value) == 3 and all(map(is_count, value))
    )


def is_mark(value: object) -> bool:
    """Checks whether a value tells what the draws of a run come from."""
    if not isinstance(value, dict) or set(value) != {"settings", "space", "key"}:
        return False
    digests = value["settings"], value["space"]
    return (
        type(value["key"]) is int
        and value["key"] >= 0
        and all(isinstance(digest, str) and _DIGEST.fullmatch(digest) for digest in digests)
    )


_DIGEST = re.compile("[0-9a-f]{16}")

_SYSTEM_FORMS: dict[str, Callable[[object], bool]] = {
    "privbo:epoch": is_count,
    "privbo:row": is_count,
    "privbo:claim": is_draw,
    "privbo:draw": is_draw,
    "privbo:duets": is_mark,
}
"""What samplers write into a trial's system attributes."""


def _is_odd(name: str, value: object) -> bool:
    """Tells if a system attribute has a name of the plugin's and not what it writes there."""
    if not name.startswith("privbo:"):
        return False
    return name not in _SYSTEM_FORMS or not _SYSTEM_FORMS[name](value)


def suspicions(
    trial: FrozenTrial,
    released: float | None,
    own: Collection[str],
    public: Collection[str],
    *,
    plain: str,
    beside: str,
) -> Iterator[str]:
    """Yields the reasons to claim nothing of the data that one trial holds.

    Args:
        trial: Of any state.
        released: The release that stands behind its value; None for none.
        own: Attributes that hold what the plugin writes there.
        public: Operations whose data were declared public.
        plain: What to say of a value that was not released.
        beside: What to say of other data; ``{}`` is the operation that wrote them.
    """
    value = _unsigned(trial.value) if must_be_released(trial) else None
    shown = Shown(key_of(trial), value, dict.fromkeys(outputs_of(trial, own)))
    record = TrialRecord(_unsigned(released), False, public)
    yield from complaints(shown, record, plain=plain, beside=beside)


def _unsigned(value: float | None) -> float | None:
    """A value without the sign of a zero, which some databases do not keep."""
    return None if value is None else value + 0.0


def must_be_released(trial: FrozenTrial) -> bool:
    """Tells if a trial has a value to compare; storages show one shortly before it is complete."""
    shown = bool(trial.values) and trial.state != TrialState.PRUNED
    return shown or trial.state == TrialState.COMPLETE


def _reported(trial: FrozenTrial) -> bool:
    reports = trial.intermediate_values
    return bool(reports) and same(trial.values[0], reports[max(reports)])


def failures_in(trials: Sequence[FrozenTrial]) -> int:
    """Number of trials of any worker that failed or were pruned."""
    return sum(trial.state in (TrialState.FAIL, TrialState.PRUNED) for trial in trials)


def attributes_note(study: Study) -> list[str]:
    """Notes a study's files, and the names of attributes that somebody else wrote."""
    listed = study._storage.get_study_system_attrs(study._study_id)
    n_files = sum(name.startswith(_FILE) for name in listed)
    files = [f"files were uploaded to the study, which are not covered: {n_files}"]
    return [*_others_note(study), *(files if n_files else [])]


def _others_note(study: Study) -> list[str]:
    system = study._storage.get_study_system_attrs(study._study_id)
    of_others = {name for name in system if name.startswith("privbo:")} - {JOINED_ATTR}
    shown = study.user_attrs.items()
    others = sorted(of_others | {name for name, value in shown if not _is_own(study, name, value)})
    if not others:
        return []
    more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
    return [
        "the study holds attributes which this sampler did not write and which are not covered: "
        f"{', '.join(map(legible, others[:_NAMED]))}{more}"
    ]


def _is_own(study: Study, name: str, value: object) -> bool:
    """Checks whether an attribute of a study has a name and a form that this package writes."""
    try:
        found = _OWN_STUDY_ATTRS.fullmatch(f"{name} {json.dumps(value, sort_keys=True)}")
    except (TypeError, ValueError):  # a storage in memory holds anything
        return False
    known = None if found is None else found["study"]
    return found is not None and known in (None, json.dumps(own_name(study))[1:-1])


def own_name(study: Study) -> str:
    """Returns the name that distinguishes a study from its copies."""
    return f"{study.study_name}/{study._study_id}"


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


def refuse_search_cv(name: str) -> None:
    """OptunaSearchCV stores its own scores, of every fold, so nothing could be claimed for them.

    Called wherever Optuna calls a sampler: in threads only the objective's own calls show whose
    trial it is.
    """
    if _SEARCH_CV in sys.modules and _of_search_cv(sys._getframe(1)):
        raise PrivacyError(
            f"{name} cannot protect anything inside OptunaSearchCV, whose objective is its own: "
            "it stores the mean score and the score of every fold as they are. Write an "
            "objective that fits the model and returns what is to be protected, and wrap it: "
            "study.optimize(sampler.private(objective)). No model has been scored."
        )


def _of_search_cv(frame: FrameType | None) -> bool:
    """Checks whether the innermost loop that a call comes from runs OptunaSearchCV's objective."""
    while frame is not None:
        module = frame.f_globals.get("__name__")
        if module == _SEARCH_CV:
            return True
        if module == Study.__module__ and frame.f_code is Study.optimize.__code__:
            outer = frame.f_back
            return outer is not None and outer.f_globals.get("__name__") == _SEARCH_CV
        frame = frame.f_back
    return False


def trials_of_loop() -> int | None:
    """``n_trials`` of the ``study.optimize`` that this call comes from; None if unknown.

    In threads (``n_jobs``) a call does not show what loop it comes from.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not Study.optimize.__code__:
        frame = frame.f_back
    asked = None if frame is None else frame.f_locals.get("n_trials")
    return asked if isinstance(asked, int) else None


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
