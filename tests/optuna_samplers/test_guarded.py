"""What a private objective writes into its study: nothing but what is declared public."""

import re
import warnings
from typing import Any

import pytest
from optuna.artifacts import FileSystemArtifactStore, upload_artifact
from optuna.trial import TrialState

from optuna_samplers import private_objective
from privbo_plugins.errors import PrivacyError, PrivacyWarning
from tests.drivers import begin, status

pytestmark = [
    pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning"),
    pytest.mark.filterwarnings("ignore::privbo_plugins.errors.UtilityWarning"),  # few records
]

each_system = pytest.mark.parametrize("system", ["records", "any sampler", "rewards", "duets"])

OUTPUTS = {
    "report": lambda trial, **public: trial.report(0.5, 1, **public),
    "should_prune": lambda trial, **public: trial.should_prune(**public),
    "set_user_attr": lambda trial, **public: trial.set_user_attr("a", 1, **public),
    "set_constraint": lambda trial, **public: trial.set_constraint("c", 1.0, **public),
}

STORED = r"storage.*set_user_attr\(\.\.\., public=True\)"
CLOSED = {
    "report": (OUTPUTS["report"], "intermediate values"),
    "should_prune": (OUTPUTS["should_prune"], "private records|private"),
    "set_user_attr": (OUTPUTS["set_user_attr"], "user attributes"),
    "set_constraint": (OUTPUTS["set_constraint"], "constraint"),
    "study": (lambda t: t.study, STORED),
    "storage": (lambda t: t.storage, STORED),
    "set_system_attr": (lambda t: t.set_system_attr("a", 1), "storage"),
    "_trial_id": (lambda t: t._trial_id, "storage"),
    "relative_params": (lambda t: t.relative_params, r"live dictionary.*trial\.params"),
    "constraints": (lambda t: t.constraints, "constraint"),
    "public=1": (lambda t: t.report(0.5, 1, public=1), "intermediate values"),
    "public=False": (lambda t: t.report(0.5, 1, public=False), "intermediate values"),
}
"""What is closed, why, and what to do instead."""


def private_of(run, uses):
    """An objective that does something beside its evaluation: the last of these."""

    def objective(trial):
        returned = run.objective(trial)
        uses[-1](trial)
        return returned

    if run.key == "any sampler":
        run.told = private_objective(objective, seed=0, **run.system.settings)
        return run.told
    return run.told.private(objective, **run.system.named)


@pytest.mark.parametrize(("use", "why"), CLOSED.values(), ids=CLOSED)
@each_system
def test_a_private_objective_cannot_write_into_the_study(system, use, why, tmp_path):
    run = begin(system, "optuna", tmp_path)
    study = run.study
    private = private_of(run, uses := [use])
    with pytest.raises(PrivacyError, match="closed to a private objective") as raised:
        study.optimize(private, n_trials=1)
    assert re.search(why, str(raised.value))
    trial = study.trials[0]
    assert trial.state == TrialState.FAIL
    assert set(trial.user_attrs) <= {"privbo:agent", "privbo:epoch"}
    assert (trial.intermediate_values, trial.constraints) == ({}, {})
    assert status(run)["releases"] == 0
    uses.append(lambda _: None)
    study.optimize(private, n_trials=1)
    assert study.trials[1].state == TrialState.COMPLETE
    assert run.ask("guarantee").protected


@pytest.mark.parametrize("operation", OUTPUTS)
@each_system
def test_public_values_pass_and_are_noted(system, operation, tmp_path):
    run = begin(system, "optuna", tmp_path)
    study = run.study
    declared = [lambda trial: OUTPUTS[operation](trial, public=True)]
    study.optimize(private_of(run, declared), n_trials=3)
    guarantee = run.ask("guarantee")
    assert guarantee.protected
    assert f"trial.{operation}" in " ".join(guarantee.notes)
    assert f"trial.{operation}" in guarantee.details()
    expected = {"report": {1: 0.5}}.get(operation, {})
    assert study.trials[0].intermediate_values == expected
    assert ("a" in study.trials[0].user_attrs) == (operation == "set_user_attr")


BESIDE_LOSSES = "privbo:release", "privbo:role", "privbo:public"
BESIDE_REWARDS = "privbo:play", "privbo:public"
WRITTEN = {
    "records": BESIDE_LOSSES, "any sampler": BESIDE_LOSSES,
    "rewards": BESIDE_REWARDS, "duets": BESIDE_REWARDS,
}  # fmt: skip
"""What a private objective writes beside a value, by system."""


@pytest.mark.parametrize(
    ("system", "name"), [(system, name) for system in WRITTEN for name in WRITTEN[system]]
)
def test_what_stood_under_the_plugins_own_attributes_unprotects(system, name, tmp_path):
    """A journal keeps what is overwritten for ever, so it is looked at before it is."""
    run = begin(system, "optuna", tmp_path)
    study, private = run.study, private_of(run, [lambda trial: trial.report(1.0, 0, public=True)])
    study.optimize(private, n_trials=1)
    assert run.ask("guarantee").protected
    trial = study.ask()
    trial.set_user_attr(name, 0.735)
    with pytest.warns(PrivacyWarning, match="not declared public"):
        study.tell(trial, private(trial))
    guarantee = run.ask("guarantee")
    assert not guarantee.protected
    assert "not declared public" in guarantee.details()
    assert study.user_attrs["privbo:guarantee"].startswith("NOT PROTECTED")


@each_system
def test_a_file_that_is_uploaded_to_a_trial_unprotects(system, tmp_path):
    (tmp_path / "files").mkdir()
    file, store = tmp_path / "raw.csv", FileSystemArtifactStore(str(tmp_path / "files"))
    file.write_text("0.735")
    run = begin(system, "optuna", tmp_path)
    trial = run.study.ask()
    upload_artifact(study_or_trial=trial, file_path=str(file), artifact_store=store)
    with warnings.catch_warnings(action="ignore", category=PrivacyWarning):
        run.study.tell(trial, private_of(run, [lambda _: None])(trial))
    assert not run.ask("guarantee").protected
    assert "not declared public" in run.ask("guarantee").details()


def test_the_guarded_trial_passes_on_what_is_harmless(tmp_path):
    run, seen = begin("records", "optuna", tmp_path, search_space=None), dict[str, Any]()

    def look(trial):
        seen.update(
            number=trial.number,
            params=trial.params,
            distributions=list(trial.distributions),
            started=trial.datetime_start,
            text=repr(trial),
            kinds=(
                trial.suggest_int("k", 1, 9, log=True),
                trial.suggest_categorical("c", ["a", "b"]),
                trial.suggest_float("f", 0, 1, step=0.25),
            ),
        )

    study = run.study
    study.optimize(private_of(run, [look]), n_trials=1)
    params = study.trials[0].params
    assert (seen["number"], seen["params"]) == (0, {"x": params["x"]})
    assert (seen["distributions"], seen["text"]) == (["x"], "GuardedTrial(number=0)")
    assert seen["started"] is not None
    assert seen["kinds"] == tuple(params[name] for name in "kcf")
