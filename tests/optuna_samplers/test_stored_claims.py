"""What a study shows is claimed only after looking at everything that it holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.samplers import RandomSampler
from optuna.study import Study
from optuna.trial import TrialState, create_trial

from optuna_samplers import DPGIBOSampler, ldp_objective
from privbo_plugins.errors import PrivacyError, PrivacyWarning, UtilityWarning, VaultError
from privbo_plugins.sessions.records import Session
from privbo_plugins.sessions.rewards import RewardCurator
from tests.optuna_samplers.runs import RECORDS, make_sampler, squares

GUARANTEE = "privbo:guarantee"
SECRET = float(RECORDS[0])


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(verbosity)


def begun() -> tuple[DPGIBOSampler, Study]:
    sampler = make_sampler()
    return sampler, optuna.create_study(sampler=sampler)


def another_worker(study: Study, sampler: Any = None) -> Study:
    """The same study, loaded by somebody who knows nothing of privacy."""
    sampler = RandomSampler(seed=0) if sampler is None else sampler
    return optuna.load_study(study_name=study.study_name, storage=study._storage, sampler=sampler)


def raw_mean(trial: Any) -> float:
    return float(squares(trial).mean())


def rewards() -> Any:
    return ldp_objective(
        lambda t: t.suggest_float("x", 0, 1),
        epsilon=1.0,
        reward_range=(0, 1),
        mechanism="laplace",
    )


# Records ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [0, 1, 3])
def test_raw_values_of_another_worker_are_never_claimed_to_be_protected(before: int) -> None:
    sampler, study = begun()
    study.optimize(sampler.private(squares), n_trials=before)
    another_worker(study).optimize(raw_mean, n_trials=1)
    with pytest.warns(PrivacyWarning, match="values that were not released"):
        study.optimize(sampler.private(squares), n_trials=1)
    assert study.user_attrs[GUARANTEE].startswith("NOT PROTECTED")
    study.optimize(sampler.private(squares))
    assert sampler.finished(study)
    assert study.user_attrs[GUARANTEE].startswith("NOT PROTECTED")


def test_raw_values_are_noticed_by_an_objective_under_another_sampler() -> None:
    """Then no hook of the private sampler runs."""
    sampler, study = begun()
    worker = another_worker(study)
    worker.optimize(raw_mean, n_trials=1)
    worker.optimize(sampler.private(squares), n_trials=1)
    assert study.user_attrs[GUARANTEE].startswith("NOT PROTECTED")


def _added(state: TrialState, **more: Any) -> Callable[[Study], None]:
    def add(study: Study) -> None:
        trial = create_trial(
            state=state,
            params={"x": 0.5},
            distributions={"x": FloatDistribution(0, 1)},
            **more,
        )
        study.add_trial(trial)

    return add


def _pruned_by_others(study: Study) -> None:
    def objective(trial: Any) -> float:
        trial.report(raw_mean(trial), 0)
        raise optuna.TrialPruned

    another_worker(study).optimize(objective, n_trials=1)


def _failed_by_others(study: Study) -> None:
    def objective(trial: Any) -> float:
        trial.set_user_attr("mean", raw_mean(trial))
        raise KeyError

    another_worker(study).optimize(objective, n_trials=1, catch=(KeyError,))


STRAY: dict[str, Callable[[Study], None]] = {
    "value of a pruned trial": _added(TrialState.PRUNED, value=SECRET),
    "value beside a report": _added(TrialState.PRUNED, value=SECRET, intermediate_values={0: 0.5}),
    "value of a running trial": _added(TrialState.RUNNING, value=SECRET),
    "report of a failed trial": _added(TrialState.FAIL, intermediate_values={0: SECRET}),
    "attribute of a failed trial": _added(TrialState.FAIL, user_attrs={"mean": SECRET}),
    "attribute of a waiting trial": lambda study: study.enqueue_trial(
        {"x": 0.5}, user_attrs={"mean": SECRET}
    ),
    "complete": _added(TrialState.COMPLETE, value=SECRET),
    "pruned": _pruned_by_others,
    "failed": _failed_by_others,
}
"""Ways into a study that no guarded trial sees."""


@pytest.mark.parametrize("stray", STRAY.values(), ids=STRAY)
def test_whatever_else_a_trial_holds_is_a_reason(stray: Callable[[Study], None]) -> None:
    sampler, study = begun()
    study.optimize(sampler.private(squares), n_trials=1)
    assert sampler.guarantee(study).protected
    stray(study)
    with pytest.warns(PrivacyWarning, match="the study holds"):
        study.optimize(sampler.private(squares), n_trials=1)
    guarantee = sampler.guarantee(study)
    assert not guarantee.protected
    assert f"{SECRET:.6f}"[:7] not in str(guarantee)
    assert study.user_attrs[GUARANTEE].startswith("NOT PROTECTED")


@pytest.mark.parametrize("stray", STRAY.values(), ids=STRAY)
def test_whatever_else_a_trial_holds_is_a_reason_for_rewards_too(
    stray: Callable[[Study], None],
) -> None:
    private, study = rewards(), optuna.create_study(sampler=RandomSampler(seed=0))
    study.optimize(private, n_trials=1)
    assert private.guarantee(study).protected
    stray(study)
    study.optimize(private, n_trials=1)
    assert study.user_attrs[GUARANTEE].startswith("NOT PROTECTED")
    assert not private.guarantee(study).protected


def test_what_was_declared_public_stays_public_in_a_pruned_trial() -> None:
    sampler, study = begun()

    def objective(trial: Any) -> np.ndarray:
        y = squares(trial)
        if trial.number == 1:
            for step, value in enumerate((0.5, math.nan, 0.25)):
                trial.report(value, step, public=True)
            raise optuna.TrialPruned
        return y

    study.optimize(sampler.private(objective), n_trials=3)
    assert study.trials[1].state == TrialState.PRUNED
    assert study.trials[1].value == 0.25
    assert sampler.guarantee(study).protected


def test_every_failed_trial_of_the_study_is_counted() -> None:
    sampler, study = begun()
    study.optimize(sampler.private(squares), n_trials=1)
    for state in (TrialState.FAIL, TrialState.FAIL, TrialState.PRUNED):
        _added(state)(study)
    guarantee = sampler.guarantee(study)
    assert guarantee.protected
    assert any(note.startswith("3 trial(s) failed or were pruned") for note in guarantee.notes)


@pytest.mark.parametrize("system", ["records", "rewards"])
def test_attributes_of_the_study_are_noted_by_name(system: str) -> None:
    sampler, study = begun()
    owner, private = sampler, sampler.private(squares)
    if system == "rewards":
        owner, study = (private := rewards()), optuna.create_study()
    study.optimize(private, n_trials=1)
    assert not any("did not write" in note for note in owner.guarantee(study).notes)
    study.set_user_attr("team", "vision")
    study.set_user_attr("mean", SECRET)
    guarantee = owner.guarantee(study)
    assert guarantee.protected
    (note,) = (note for note in guarantee.notes if "did not write" in note)
    assert note.endswith("not covered: mean, team")
    assert f"{SECRET:.6f}"[:7] not in str(guarantee)
    for i in range(9):
        study.set_user_attr(f"a{i}", i)
    assert "a0, a1, a2, a3, a4 and 6 more" in str(owner.guarantee(study).notes)


def test_trials_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run costs no more for having claims that are checked before they are written."""
    sampler, study = begun()
    study.optimize(sampler.private(squares), n_trials=3)
    monkeypatch.setattr(Session, "published", lambda _: pytest.fail("reads all releases"))
    monkeypatch.setattr(Session, "vouched", lambda _: pytest.fail("reads all declarations"))
    study.optimize(sampler.private(squares), n_trials=2)
    assert sampler.guarantee(study).protected
    assert sampler._state(study).audited == set(range(5))


# Errors of others -------------------------------------------------------------------------------


class Foreign(VaultError):
    """Made of other arguments than a text, which are data."""

    def __init__(self, record: float, name: str) -> None:
        super().__init__(f"{name}: {record}")
        self.record = record


class Talking(ValueError):
    def __str__(self) -> str:
        return f"Jane {SECRET}"


class ForeignWarning(UserWarning):
    """What a filter turned into an error."""


ERRORS = [
    Foreign(SECRET, "Jane"),
    Talking(),
    UnicodeDecodeError("utf-8", b"Jane", 0, 1, f"{SECRET}"),
    ForeignWarning(f"Jane {SECRET}"),
    type(f"Jane{SECRET}", (PrivacyError,), {})("Jane"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__[:8])
@pytest.mark.parametrize("system", ["records", "rewards"])
def test_errors_of_other_classes_are_told_by_a_public_name_alone(
    error: Exception, system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(Session, "tell", fails)
    monkeypatch.setattr(RewardCurator, "release", fails)
    sampler, study = begun()
    private = sampler.private(squares)
    if system == "rewards":
        private, study = rewards(), optuna.create_study()
    with pytest.raises(PrivacyError, match="failed inside the engine") as raised:
        study.optimize(private, n_trials=1)
    assert type(raised.value) is PrivacyError
    assert "Jane" not in str(raised.value)
    assert raised.value.__context__ is None
    known = type(error) is UnicodeDecodeError
    assert str(raised.value).endswith("(UnicodeDecodeError)." if known else "(an exception).")


@pytest.mark.parametrize("error", [VaultError("full"), UtilityWarning("drowned")], ids=repr)
def test_the_engine_s_own_errors_keep_their_words(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(Session, "tell", fails)
    sampler, study = begun()
    with pytest.raises(type(error), match=str(error)) as raised:
        study.optimize(sampler.private(squares), n_trials=1)
    assert raised.value is not error


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__[:8])
def test_errors_of_other_classes_while_suggesting_are_not_quoted(error: Exception) -> None:
    sampler, study = begun()
    study.optimize(sampler.private(squares), n_trials=2)

    def fails(*_: Any, **__: Any) -> Any:
        raise error

    study.sampler = RandomSampler(seed=0)
    study.sampler.sample_independent = fails  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="was refused") as raised:
        study.optimize(sampler.private(squares), n_trials=1)
    assert "Jane" not in str(raised.value)
