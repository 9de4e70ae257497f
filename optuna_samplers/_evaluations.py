"""What a study's storage says of privatised rewards: releases, mechanisms, what was declared.

The study is shared where the vault need not be: each user's process may have a ledger of its own.
So every trial remembers its release, and is compared with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from optuna_samplers import _audit, _study
from optuna_samplers._audit import BESIDE, OF_REWARDS, Audit, kind_of, stored
from optuna_samplers._space import CONSTANT_CHANGED
from privbo_plugins.privacy.claim import SoFar
from privbo_plugins.privacy.local import LocalMechanism
from privbo_plugins.store.release import TEST_NOISE
from privbo_plugins.users import PLAIN

PLAY_ATTR = "privbo:play"
"""Trial attribute with the release and the mechanism that it went through."""

PUBLIC_ATTR = "privbo:public"
"""Trial attribute with the operations that the objective declared public."""

OTHER_RELEASE = "trials remember releases that their ledger does not hold"

_OWN_ATTRS = (PLAY_ATTR, "privbo:agent", "privbo:epoch")
"""Trial attributes that a wrapped objective and DUETSSampler write."""

_PARAMETERS = ("mechanism", "epsilon", "delta", "low", "high")

_LONGEST_STEP = 20


@dataclass
class StoredEvaluations:
    """What a study's storage says of its evaluations."""

    releases: set[tuple[str, float]] = field(default_factory=set)
    unshown: set[tuple[str, float]] = field(default_factory=set)
    public: set[str] = field(default_factory=set)
    mechanisms: set[tuple[Any, ...]] = field(default_factory=set)
    users_named: bool = False
    reasons: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def n(self) -> int:
        """Number of evaluations; a retry that repeats the release of its trial does not count."""
        return len(self.releases)

    @property
    def repeats(self) -> int:
        """The most releases of one trial; more than one if a retry drew again."""
        return max(Counter(key for key, _ in self.releases).values(), default=0)

    def told(self) -> dict[str, Any]:
        """Returns the words of a claim: whether users were named, reasons and notes."""
        return {name: getattr(self, name) for name in ("users_named", "reasons", "notes")}

    def count(self, trial: FrozenTrial) -> None:
        """Counts what a trial remembers."""
        self.public |= {kind_of(operation) for operation in declared_by(trial)}
        evaluation = evaluation_of(trial)
        if evaluation is None:
            return
        release = _study.key_of(trial), evaluation["release"]
        self.releases.add(release)
        if trial.state in (TrialState.FAIL, TrialState.PRUNED):
            self.unshown.add(release)
        self.users_named |= evaluation["user_named"]
        self.mechanisms.add(tuple(evaluation[name] for name in _PARAMETERS))
        if evaluation["test_noise"]:
            self.reasons.append(TEST_NOISE)

    def contradicted_by(self, evaluations: Mapping[str, float]) -> bool:
        """Checks whether a ledger that all workers share knows better than the study.

        A copy of a study completes trials that its new ledger does not know; it fails none.
        """
        others = any(evaluations.get(key, release) != release for key, release in self.releases)
        return others or any(key not in evaluations for key, _ in self.unshown)


def read_evaluations(
    study: Study,
    mechanism: LocalMechanism,
    declared: Mapping[str, BaseDistribution] | None = None,
) -> StoredEvaluations:
    """Compares every value in a study with the release that its trial remembers.

    Args:
        study: The study.
        mechanism: What every reward must have gone through.
        declared: The declared search space, if there is one.
    """
    found = StoredEvaluations()
    trials = [_study.still(trial) for trial in study.get_trials(deepcopy=False)]
    for trial in trials:
        found.count(trial)
    audit = Audit(unexplained, lambda *_: None, declared)
    audit.look(study)
    found.reasons += audit.found
    if found.mechanisms - {tuple(mechanism.parameters().values())}:
        found.reasons.append("some evaluations went through another mechanism than this one")
    if _study.EXPOSED_ATTR in study.user_attrs:
        known = study.user_attrs[_study.EXPOSED_ATTR] == BESIDE
        found.reasons.append(BESIDE if known else CONSTANT_CHANGED)
    found.notes += _audit.attributes_note(study)
    if found.repeats > 1:
        found.notes.append("a trial was retried where its first release was not known")
    for operation in sorted(found.public):
        found.notes.append(f"the objective declared what it gave to trial.{operation} public")
    failed = _study.failures_in(trials)
    if failed:
        text = f"{failed} trials failed or were pruned: which do may tell of their users' rewards"
        found.notes.append(SoFar(text))
    return found


def unexplained(trials: Iterable[FrozenTrial]) -> Iterator[str]:
    """Yields why nothing may be claimed of what trials hold."""
    for trial in trials:
        evaluation, public = evaluation_of(trial), declared_by(trial)
        release = None if evaluation is None else evaluation["release"]
        outputs = _audit.outputs_of(trial, own_attributes(trial))
        told = None if release is None else [release]
        yield from _audit.suspicions(trial, outputs, told, public, PLAIN, BESIDE)


def own_attributes(trial: FrozenTrial) -> set[str]:
    """Attributes that hold what a wrapped objective, or its sampler, writes there."""
    attrs = trial.user_attrs
    own = {name for name in _OWN_ATTRS if stored(attrs, name, OF_REWARDS) is not None}
    return own | ({PUBLIC_ATTR} if declared_by(trial) else set())


def evaluation_of(trial: FrozenTrial) -> dict[str, Any] | None:
    """Returns the release that a trial remembers, its mechanism and whose it was."""
    found: dict[str, Any] | None = stored(trial.user_attrs, PLAY_ATTR, OF_REWARDS)
    return found


def shows_release(trial: FrozenTrial) -> bool:
    """Checks whether a trial's value is the release that it remembers."""
    value, evaluation = trial.value, evaluation_of(trial)
    if value is None or evaluation is None:
        return False
    return _study.same(value, evaluation["release"])


# What was declared public -----------------------------------------------------------------------


def declared_by(trial: FrozenTrial) -> list[str]:
    """Lists operations that were declared public; none if the attribute holds anything else.

    Of a finished trial an attribute or constraint that it does not hold is something else: a
    text that was given to no guarded trial.
    """
    told: list[str] = stored(trial.user_attrs, PUBLIC_ATTR, OF_REWARDS) or []
    held = {*_audit.DECLARABLE, *_audit.outputs_of(trial, ())} if told else set()
    plausible = all(text in held or _may_come(text, trial) for text in told)
    return told if plausible else []


def _may_come(text: str, trial: FrozenTrial) -> bool:
    """Tells if an operation may have been declared without a trace: a retry drops reports."""
    kind = kind_of(text)
    step = text.removeprefix("report(").removesuffix(")")
    if kind == "report":
        return step.removeprefix("-").isdecimal() and len(step) < _LONGEST_STEP
    return kind in _audit.DECLARABLE and not trial.state.is_finished()


def declare(trial: optuna.Trial, operation: str) -> None:
    """Remembers that an operation was declared public."""
    known = set(declared_by(_study.frozen_of(trial)))
    trial.set_user_attr(PUBLIC_ATTR, sorted(known | {operation}))
