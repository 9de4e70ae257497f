"""What a study shows of scores: the first as its value, all of them beside it, each compared."""

import re
import warnings

import numpy as np
import optuna
import pytest

from optuna_samplers import private_objective
from privbo_plugins import scores
from privbo_plugins.errors import BudgetExceededError
from privbo_plugins.sessions.stored import run_named
from privbo_plugins.store.vault import open_vault

pytestmark = pytest.mark.filterwarnings("ignore::privbo_plugins.errors.UtilityWarning")

RNG = np.random.default_rng(0)
Y, BASE = RNG.integers(0, 2, 300), RNG.random(300)


def objective(trial):
    p = np.clip((BASE + Y * trial.suggest_float("x", 0, 1)) / 2, 0, 1)
    return scores.predictions(Y, predicted=(p > 0.5).astype(int), probabilities=p)


def begun(n=3, direction="maximize", **more):
    given = {"scores": ["f1", "roc_auc"], "mu": 1.0, "n_trials": 6} | more
    if given["scores"] == ["f1", "roc_auc"]:
        given = {"constraints": {"roc_auc": 0.7}} | given
    private = private_objective(objective, **given)
    study = optuna.create_study(direction=direction, sampler=optuna.samplers.RandomSampler(seed=0))
    if n:
        study.optimize(private, n_trials=n)
    return private, study


def test_the_value_is_the_first_score_and_all_stand_beside_it_with_their_noise():
    private, study = begun(6)
    for trial in study.trials:
        shown = trial.user_attrs["privbo:scores"]
        assert [*shown] == ["f1", "roc_auc"]
        assert trial.value == shown["f1"][0]
        assert all(0 <= value <= 1 and sd > 0 for value, sd in shown.values())
    assert private.guarantee(study).protected
    assert private.finished(study)
    told = r"roc_auc, from cells: 5 means with noise of sd \S+; pairs: 2 means with noise of sd"
    assert re.search(told, private.guarantee(study).details())


def _system(trial, **values):
    trial.system_attrs.update({f"constraints{name}": value for name, value in values.items()})


ALTERED = {
    "the value": lambda trial: trial.values.__setitem__(0, trial.values[0] + 1e-9),
    "a constraint": lambda trial: _system(trial, **{":roc_auc": -0.1}),
    "a constraint of another type": lambda trial: _system(
        trial, **{":roc_auc": np.float64(trial.constraints["roc_auc"])}
    ),
    "one constraint more": lambda trial: _system(trial, **{":f1": 0.1}),
    "constraints of a sampler": lambda trial: _system(trial, **{"": [0.5]}),
    "an attribute like a constraint": lambda trial: trial.user_attrs.update(
        {"constraints:roc_auc": trial.constraints["roc_auc"]}
    ),
    "a score": lambda trial: _shown(trial)["roc_auc"].__setitem__(0, 0.5),
    "a deviation": lambda trial: _shown(trial)["f1"].__setitem__(1, 0.5),
    "one more": lambda trial: _shown(trial).update(recall=[0.5, 0.5]),
    "one less": lambda trial: _shown(trial).pop("roc_auc"),
    "another type": lambda trial: _shown(trial).update(f1=tuple(_shown(trial)["f1"])),
}


def _shown(trial):
    return trial.user_attrs["privbo:scores"]


@pytest.mark.parametrize("what", ALTERED)
@pytest.mark.filterwarnings("ignore::privbo_plugins.errors.PrivacyWarning")
def test_a_study_that_shows_another_number_has_no_claim(what):
    private, study = begun()
    ALTERED[what](study._storage._studies[study._study_id].trials[1])
    private._forget(study)  # as another process, which looks at all trials
    assert not private.guarantee(study).protected


def test_a_direction_that_is_not_the_scores_is_refused():
    private, study = begun(0, direction="minimize")
    with pytest.raises(ValueError, match="larger values are better"):
        study.optimize(private)


@pytest.mark.parametrize("other", [["f1"], ["roc_auc", "f1"], None])
def test_a_run_goes_on_with_its_own_scores_alone(other, tmp_path):
    vault, storage = f"sqlite:///{tmp_path}/vault.db", f"sqlite:///{tmp_path}/study.db"
    study = optuna.create_study(study_name="s", storage=storage, direction="maximize")
    given = {"mu": 1.0, "n_trials": 6, "vault": vault}
    study.optimize(private_objective(objective, scores=["f1", "roc_auc"], **given), n_trials=2)
    again = optuna.load_study(study_name="s", storage=storage)
    with pytest.raises(ValueError, match="started with other settings"):
        again.optimize(private_objective(objective, scores=other, **given), n_trials=1)
    own = private_objective(objective, scores=["f1", "roc_auc"], **given)
    again.optimize(own)
    assert own.guarantee(again).mu_spent == pytest.approx(1.0)


def test_the_note_and_the_report_speak_of_scores(tmp_path):
    private, study = begun(6)
    page = private.report(study, tmp_path / "report.html").read_text()
    assert "The score over the validation records" in page or "The score over the records" in page
    private.publish(study)
    note = study._storage.get_study_system_attrs(study._study_id)["dashboard:note_str:0"]
    assert "a score of noisy means" in note


def test_losses_returned_in_their_place_fail_the_trial():
    private, study = begun(0)
    private._objective = lambda trial: np.full(300, trial.suggest_float("x", 0, 1))
    with pytest.raises(ValueError, match=r"scores\.predictions"):
        study.optimize(private)
    assert private.guarantee(study).mu_spent == 0.0


# Constraints ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["TPESampler", "NSGAIISampler", "RandomSampler"])
def test_hosts_know_which_trials_keep_the_constraints(kind):
    sampler = getattr(optuna.samplers, kind)(seed=1)
    private, _ = begun(0, n_trials=16, mu=20.0, constraints={"roc_auc": 0.8}, feasible_with=0.95)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.optimize(private)
    kept = []
    for trial in study.trials:
        value, sd = trial.user_attrs["privbo:scores"]["roc_auc"]
        assert trial.constraints == {"roc_auc": pytest.approx(0.8 - value + 1.6449 * sd, abs=1e-4)}
        kept.append(trial.constraints["roc_auc"] <= 0)
    assert 0 < sum(kept) < 16
    assert kept[study.best_trial.number]
    recommended = private.recommend(study)
    assert any(own and t.params == recommended for own, t in zip(kept, study.trials, strict=True))
    assert private.guarantee(study).protected


def test_a_trial_that_another_process_released_gets_its_constraints_from_the_vault(tmp_path):
    private, study = begun(1)
    trial = study.ask()
    value = private(trial)  # and the process ends before it tells
    before = study.trials[1].constraints
    attrs = study._storage._studies[study._study_id].trials[1].system_attrs
    assert attrs.pop("constraints:roc_auc") == before["roc_auc"]
    assert private.replay(study) == [1]
    assert (study.trials[1].value, study.trials[1].constraints) == (value, before)
    assert private.guarantee(study).protected


@pytest.mark.filterwarnings("ignore::privbo_plugins.errors.PrivacyWarning")
def test_what_stood_in_their_place_before_is_not_forgotten():
    private, study = begun(1)
    trial = study.ask()
    trial.set_constraint("roc_auc", float(Y[0]) + 0.123)
    study.tell(trial, private(trial))
    assert study.trials[1].constraints["roc_auc"] != float(Y[0]) + 0.123
    assert not private.guarantee(study).protected


# A last word ------------------------------------------------------------------------------------


def chosen(x=0.5):
    return objective(optuna.trial.FixedTrial({"x": x}))


def test_a_last_score_is_paid_out_of_its_share_once():
    private, study = begun(6, final_share=0.36)
    assert private.guarantee(study).mu_spent == pytest.approx(0.8)
    value, sd = private.release_score(study, "roc_auc", chosen())
    assert 0 <= value <= 1
    assert 0 < sd < study.trials[0].user_attrs["privbo:scores"]["roc_auc"][1]
    assert private.guarantee(study).mu_spent == pytest.approx(1.0)
    with warnings.catch_warnings(action="error"):  # it is paid for, and handed out
        again = private.release_score(study, "roc_auc", chosen(0.1))
    assert again == (value, sd)
    with pytest.raises(BudgetExceededError):
        private.release_score(study, "f1", chosen())
    assert private.guarantee(study).mu_spent == pytest.approx(1.0)
    assert private.guarantee(study).protected


def test_a_plan_says_what_is_kept():
    assert "a score of the model that is chosen" in str(
        private_objective(objective, mu=1.0, n_trials=3, final_share=0.1).plan(
            {"x": optuna.distributions.FloatDistribution(0, 1)}, 1000
        )
    )


# Several objectives -----------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize("retried", [True, False])
def test_a_trial_that_ends_over_its_draw_keeps_its_charge_and_its_point(retried):
    """A retry shows the draw; without one, the study ends with the last trial that is paid for."""
    ends = iter([True])

    def combine(m, s):
        if m[0] != 0.5 and next(ends, False):
            raise KeyboardInterrupt
        return m[0]

    own = scores.Score("own", scores.PerRecord(lambda one: one.predicted), combine)

    def at(trial):
        x = trial.suggest_float("x", 0, 1)
        return scores.predictions(np.zeros(400), predicted=np.full(400, x))

    private = private_objective(at, scores=[own], mu=1e4, n_trials=4)
    study = optuna.create_study(direction="maximize")
    with pytest.raises(KeyboardInterrupt):
        study.optimize(private, n_trials=4)
    if retried:
        optuna.storages.RetryHeartbeatStaleTrialCallback()(study, study.trials[-1])
    study.optimize(private, n_trials=20, catch=(BudgetExceededError,))
    assert len(study.trials) == 4 + retried
    done = study.get_trials(states=(optuna.trial.TrialState.COMPLETE,))
    assert [t.value for t in done] == [pytest.approx(t.params["x"], abs=0.01) for t in done]
    assert len(done) == 3 + retried
    assert private.guarantee(study).mu_spent == pytest.approx(1e4)


def several(sampler=None, n_trials=8, **more):
    given = {"scores": ["f1", "roc_auc", "accuracy"], "mu": 1.0, "n_trials": n_trials} | more
    private = private_objective(objective, **given)
    study = optuna.create_study(
        directions=["maximize"] * 2, sampler=sampler or optuna.samplers.RandomSampler(seed=0)
    )
    return private, study


@pytest.mark.parametrize("kind", [optuna.samplers.NSGAIISampler, optuna.samplers.TPESampler])
def test_the_values_of_several_objectives_are_one_release(kind, tmp_path):
    alarms = scores.Score("alarms", scores.Cells(), lambda m, s: m[1])  # which F1 is against
    url = f"sqlite:///{tmp_path}/v.db"
    private, study = several(kind(seed=0), scores=["f1", "roc_auc", alarms], vault=url)
    study.optimize(private)
    for trial in study.trials:
        shown = trial.user_attrs["privbo:scores"]
        assert trial.values == [shown["f1"][0], shown["roc_auc"][0]]
    shown = zip(study.trials, private.history(study).front, strict=True)
    assert [trial for trial, front in shown if front] == study.best_trials
    stored = run_named(open_vault(url), None).session.history()  # as `privbo report` reads it
    assert (stored.front_of, stored.front) == (["f1", "roc_auc"], private.history(study).front)
    claim = private.guarantee(study)
    assert claim.protected
    assert (claim.n_releases, round(claim.mu_spent, 9)) == (8, 1.0)
    assert set(private.recommend(study)) == {"x"}
    page = private.report(study, tmp_path / "report.html").read_text()
    assert [page.count(f"<strong>f1 and {other} of") for other in ("roc_auc", "alarms")] == [1, 1]
    private.publish(study)
    with pytest.raises(BudgetExceededError, match="budget of this study is spent"):
        private(study.ask())


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.filterwarnings("ignore::privbo_plugins.errors.PrivacyWarning")
def test_each_of_several_values_is_compared(place):
    private, study = several()
    study.optimize(private, n_trials=3)
    values = study._storage._studies[study._study_id].trials[1].values
    values[place] += 1e-9
    private._forget(study)
    assert not private.guarantee(study).protected


def test_more_objectives_than_scores_are_refused_and_each_has_its_direction():
    private, study = several(scores=["f1"])
    with pytest.raises(ValueError, match="as many scores="):
        study.optimize(private)
    private, study = several(scores=["f1", "expected_calibration_error"])
    with pytest.raises(ValueError, match="smaller values are better"):
        study.optimize(private)
