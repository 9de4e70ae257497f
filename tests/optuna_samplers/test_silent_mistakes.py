"""Mistakes that a run would survive, and its promise or its use would not: each is told."""

import contextlib
import logging
import math
import re
import warnings

import numpy as np
import optuna
import pytest

from optuna_samplers import DPGIBOSampler, LDPGPUCBSampler, ldp_objective, private_objective
from privbo_plugins import scores
from privbo_plugins.convert import fingerprint
from privbo_plugins.errors import PrivacyWarning, UtilityWarning
from tests.inside import session_of
from tests.optuna_samplers.runs import RECORDS, begun_study, make_sampler, squares

NAMES = [f"patient {i}" for i in range(len(RECORDS))]


@pytest.fixture
def logged(caplog):
    optuna.logging.enable_propagation()
    with caplog.at_level(logging.DEBUG, logger="optuna"):
        yield caplog
    optuna.logging.disable_propagation()


# Records ----------------------------------------------------------------------------------------


def test_as_many_ids_as_losses_or_nothing_is_stored():
    sampler, study = begun_study(record_ids=NAMES[:-1])
    with pytest.raises(ValueError, match=rf"of {len(RECORDS)} records, and {len(RECORDS) - 1}"):
        study.optimize(sampler.private(squares), n_trials=1)
    assert session_of(sampler, study).n_records is None
    assert not sampler.guarantee(study).n_releases


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["ab", "c"], ["a", "bc"]), ([1, 2], [2, 1]), ([2**53, 0], [2**53 + 1, 0]),
        ([1, 2], [1, 2, 3]), ([0.1, 0.2], [0.2, 0.1]),
    ],
)  # fmt: skip
def test_fingerprints_differ(one, other):
    assert fingerprint(one) == fingerprint(np.array(one)) != fingerprint(other)


# What is returned without a wrapper -------------------------------------------------------------


def returned(kind):
    convert = {
        "vector": lambda y: y,
        "list": lambda y: y.tolist(),
        "text": lambda y: f"{y[0]}",
        "one entry in a list": lambda y: [str(y[0]) + "x"],
    }
    return lambda trial: convert[kind](squares(trial))


@pytest.mark.parametrize("kind", ["vector", "list", "one entry in a list"])
@pytest.mark.parametrize("sampler", ["losses", "rewards"])
def test_optuna_does_not_log_a_vector(kind, sampler, logged):
    made = (
        make_sampler()
        if sampler == "losses"
        else LDPGPUCBSampler(epsilon=1, value_range=(0.0, 1.0), seed=0)
    )
    study = optuna.create_study(sampler=made)
    seen = []

    def objective(trial):
        seen.append(squares(trial))
        return returned(kind)(trial)

    outside = pytest.warns(PrivacyWarning, match="trials ran outside sampler.private")
    with outside if sampler == "losses" else contextlib.nullcontext():
        study.optimize(objective, n_trials=1)
    assert study.trials[0].state.name == "FAIL"
    assert "cannot store as one number; what it was is not shown" in logged.text
    for y in seen[0][:20]:
        assert f"{y:.6g}"[1:7] not in logged.text.replace(str(study.trials[0].params), "")


def test_a_plain_study_afterwards_logs_as_ever(logged):
    sampler = make_sampler()
    with pytest.warns(PrivacyWarning):
        optuna.create_study(sampler=sampler).optimize(returned("vector"), n_trials=1)
    plain = optuna.create_study(sampler=optuna.samplers.RandomSampler())
    plain.optimize(lambda trial: [1.25, 2.5], n_trials=2)
    assert "Trial 1 failed with value [1.25, 2.5]." in logged.text


# Values at an end of the range ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("losses", "direction", "end"),
    [
        (lambda n: np.full(n, np.nan), "minimize", "of 1,"),
        (lambda n: np.full(n, np.nan), "maximize", "of 0,"),
        (lambda n: np.full(n, 37.0), "minimize", "of 1,"),
        (lambda n: np.full(n, -37.0), "maximize", "of 0,"),
    ],
)
def test_losses_that_all_lie_beyond_the_range_are_told_once(losses, direction, end):
    sampler = DPGIBOSampler(mu=1, seed=0, n_trials=30)
    study = optuna.create_study(sampler=sampler, direction=direction)

    def objective(trial):
        trial.suggest_float("x", 0, 1)
        return losses(4000)

    with pytest.warns(UtilityWarning) as caught:
        study.optimize(sampler.private(objective), n_trials=16)
    told = [str(w.message) for w in caught if "four standard errors" in str(w.message)]
    assert len(told) == 1
    assert end in told[0]


def test_small_errors_and_high_scores_are_what_people_look_for():
    for direction, value in (("minimize", 0.0), ("maximize", 1.0), ("minimize", 0.6)):
        sampler = DPGIBOSampler(mu=1, seed=0, n_trials=20)

        def objective(trial, value=value):
            trial.suggest_float("x", 0, 1)
            return np.full(4000, value)

        optuna.create_study(sampler=sampler, direction=direction).optimize(
            sampler.private(objective), n_trials=12
        )


# Plans and loops --------------------------------------------------------------------------------


def test_fewer_trials_than_planned_are_told_at_the_start(logged):
    sampler = DPGIBOSampler(mu=3, seed=0, n_trials=30)
    study = optuna.create_study(sampler=sampler)
    study.optimize(sampler.private(squares), n_trials=12)
    planned = sampler.status(study)["planned"]
    text = logged.text
    assert f"study.optimize(n_trials=12) ends before the plan of {planned} trials" in text
    assert f"{planned - 12} will be left" in text
    assert text.index("ends before") < text.index("Trial 1 finished")
    assert "n_trials=12 from the beginning plans " in text


def test_a_vault_in_memory_under_a_stored_study_is_told(tmp_path, logged):
    sampler = make_sampler()
    study = optuna.create_study(sampler=sampler, storage=f"sqlite:///{tmp_path}/study.db")
    study.optimize(sampler.private(squares), n_trials=1)
    assert "its vault lies in this process's memory" in logged.text


# What is tuned, and how long it takes -----------------------------------------------------------

PRIVATE = {
    "sampler.private": lambda f: DPGIBOSampler(1).private(f),
    "private_objective": lambda f: private_objective(f, mu=1, n_trials=9),
    "ldp_objective": lambda f: ldp_objective(f, epsilon=1.0, bound=1.0),
    "rewards": lambda f: LDPGPUCBSampler(1.0, bound=1.0).private(f),
}


@pytest.mark.parametrize("kind", PRIVATE)
def test_a_trial_of_no_study_is_refused_with_the_line_that_evaluates_it(kind):
    def objective(trial):
        return trial.suggest_float("x", 0, 1)

    with pytest.raises(ValueError, match="it got a FixedTrial") as refused:
        PRIVATE[kind](objective)(optuna.trial.FixedTrial({"x": 0.25}))
    assert "study.optimize(private)" in str(refused.value)
    line = str(refused.value).rpartition(": ")[2].removesuffix(".")
    typed = line.replace("{...}", "{'x': 0.25}")
    assert eval(typed, {"objective": objective, "optuna": optuna}) == 0.25


def test_what_was_withheld_can_be_seen_by_the_line_that_the_error_names():
    def objective(trial):
        raise ValueError(f"row {trial.suggest_float('x', 0, 1)}")

    study = optuna.create_study(sampler=DPGIBOSampler(1, seed=0))
    with pytest.raises(ValueError, match="withheld") as refused:
        study.optimize(study.sampler.private(objective))
    (line,) = re.findall(r"objective\(optuna.*params\)\)", str(refused.value))
    with pytest.raises(ValueError, match=f"row {study.trials[0].params['x']}"):
        eval(line, {"objective": objective, "optuna": optuna, "study": study})


@pytest.mark.parametrize("kind", ["ldp_objective", "rewards"])
@pytest.mark.parametrize(
    ("direction", "told"), [("maximize", "rewards, which are maximised"), ("minimize", "costs")]
)
def test_the_direction_of_rewards_is_logged_once(kind, direction, told, logged):
    private = PRIVATE[kind](lambda trial: trial.suggest_float("x", 0, 1))
    optuna.create_study(direction=direction).optimize(private, n_trials=3)
    said = [text for text in logged.messages if text.startswith("Values are ")]
    assert len(said) == 1
    assert told in said[0]
    assert ("create_study" in said[0]) == (direction == "minimize")


def test_the_log_says_of_each_score_which_values_are_better(logged):
    y = np.arange(100) % 2
    private = private_objective(
        lambda trial: scores.predictions(y, predicted=y * trial.suggest_int("x", 0, 1)),
        scores=["f1", scores.cost([[0, 1], [5, 0]])], mu=1.0, n_trials=2,
    )  # fmt: skip
    study = optuna.create_study(directions=["maximize", "minimize"])
    study.optimize(private)
    (said,) = [text for text in logged.messages if "are planned for" in text]
    assert said.endswith("released are f1 (larger is better), cost (smaller is better).")


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize(
    ("function", "metric", "direction", "word"),
    [
        ("accuracy", None, "minimize", "accuracy"),
        ("valid_loss", "roc_auc", "minimize", None),
        ("objective", "roc_auc", "minimize", "auc"),
        ("accuracy", "reward", "maximize", None),
        ("objective", None, "minimize", None),
        ("<lambda>", None, "minimize", None),
    ],
)
def test_scores_that_are_minimised_are_told_once_by_their_public_names(
    function, metric, direction, word
):
    def objective(trial):
        return trial.suggest_float("x", 0, 1)

    objective.__name__ = function
    study = optuna.create_study(direction=direction)
    if metric is not None:
        study.set_metric_names([metric])
    with warnings.catch_warnings(record=True, action="always", category=UtilityWarning) as caught:
        study.optimize(ldp_objective(objective, epsilon=1.0, bound=1.0), n_trials=3)
    told = [str(w.message) for w in caught if w.category is UtilityWarning]
    assert [word in text for text in told] == [True] * (word is not None)


def test_no_warning_tells_that_a_reward_lies_outside_its_range(logged):
    """It is one user's secret, so what is told is the same for every reward."""

    def all_told(reward):
        logged.clear()
        private = ldp_objective(
            lambda trial: reward + 0 * trial.suggest_float("x", 0, 1), epsilon=1.0, bound=1.0
        )
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0), study_name="s")
        study.optimize(private, n_trials=20)
        return [text for text in logged.messages if not text.startswith("Trial ")]

    assert all_told(0.5) == all_told(100.0) == all_told(math.nan)


def test_the_first_trials_tell_how_long_a_long_plan_takes(logged, monkeypatch):
    monkeypatch.setattr("privbo_plugins.sessions.scheduler._LONG", 0.0)
    sampler = DPGIBOSampler(1, n_trials=12, clipping_norm=0.1, seed=0)
    optuna.create_study(sampler=sampler).optimize(sampler.private(squares))
    said = [text for text in logged.messages if "for all 12 trials of the plan" in text]
    assert len(said) == 1
    assert logged.messages.index(said[0]) < logged.messages.index(
        next(text for text in logged.messages if text.startswith("Trial 2 finished"))
    )
