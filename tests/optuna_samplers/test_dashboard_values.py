"""What a study of DP-GIBO shows: estimates as values, and each draw beside its own."""

import json
import math
import sqlite3
import warnings
from contextlib import closing

import optuna
import pytest

from optuna_samplers import ldp_objective, private_objective
from privbo_plugins.errors import PrivacyWarning
from privbo_plugins.models.estimates import Estimator
from privbo_plugins.spaces import Float, Space
from tests.inside import session_of
from tests.optuna_samplers.runs import begun_study, make_sampler, squares

LINE = Space({"x": Float(0.0, 1.0)})


def study_at(folder, direction="minimize"):
    """A study that another sampler object can come back to."""
    sampler = make_sampler(vault=f"sqlite:///{folder}/vault.db")
    study = optuna.create_study(
        storage=f"sqlite:///{folder}/study.db", study_name="s", sampler=sampler,
        direction=direction, load_if_exists=True,
    )  # fmt: skip
    return sampler, study


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_a_study_shows_the_estimate_and_the_draw_beside_it(direction):
    sampler = make_sampler()
    study = optuna.create_study(sampler=sampler, direction=direction)
    study.optimize(sampler.private(squares))
    session = session_of(sampler, study)
    drawn = [r.values[0] for r in session.releases() if r.kind == "value"]
    assert [t.user_attrs["privbo:release"] for t in study.trials] == drawn
    sigma = session.plan.value_noise
    estimator = Estimator(LINE, (0.0, 1.0), sigma, maximize=direction == "maximize")
    told = [([t.params["x"]], draw) for t, draw in zip(study.trials, drawn, strict=True)]
    expected = [estimator.at(told[k][0], told[: k + 1]) for k in range(len(told))]
    assert [t.value for t in study.trials] == pytest.approx(expected, abs=1e-9)
    assert all(0.0 <= t.value <= 1.0 for t in study.trials)
    assert sampler.guarantee(study).protected


@pytest.mark.parametrize("shown", [0.5, "0.5", True, [0.5], None])
def test_another_draw_than_the_released_one_is_unprotected(shown, tmp_path, study_tables):
    sampler, study = study_at(tmp_path)
    study.optimize(sampler.private(squares), n_trials=3)
    trial = study.trials[1]
    change(tmp_path, trial._trial_id, shown)
    again, same = study_at(tmp_path)
    guarantee = again.guarantee(same)
    assert not guarantee.protected
    assert "set_user_attr data that was not declared public" in guarantee.details()


def change(folder, trial_id, shown):
    """Writes another draw into the study's file, as whoever can write there could."""
    with closing(sqlite3.connect(folder / "study.db")) as database, database:
        changed = database.execute(
            "UPDATE trial_user_attributes SET value_json = ? WHERE trial_id = ? AND key = ?",
            (json.dumps(shown), trial_id, "privbo:release"),
        )
        assert changed.rowcount == 1


@pytest.mark.parametrize("name", ["privbo:release", "privbo:role"])
@pytest.mark.parametrize("how", ["tell", "replay"])
def test_what_stood_under_the_samplers_own_attributes_unprotects(
    name, how, tmp_path, study_tables
):
    """Also where no private objective runs, which test_guarded has for every system."""
    sampler, study = study_at(tmp_path)
    study.optimize(sampler.private(squares), n_trials=1)
    assert sampler.guarantee(study).protected
    trial = study.ask()
    losses = squares(trial)
    trial.set_user_attr(name, 0.7)
    if how == "replay":
        session_of(sampler, study).tell("1", trial.params, LINE, losses)
    with pytest.warns(PrivacyWarning, match="set_user_attr data that was not declared public"):
        sampler.tell_private(trial, losses) if how == "tell" else sampler.replay(study)
    assert not sampler.guarantee(study).protected


def test_a_replayed_trial_shows_its_draw_too(tmp_path, study_tables):
    sampler, study = study_at(tmp_path)
    study.optimize(sampler.private(squares), n_trials=2)
    trial = study.ask()
    told = sampler._state(study).tell(
        _Deaf(trial), squares(trial)
    )  # its worker dies before it shows it
    assert "privbo:release" not in study.trials[2].user_attrs
    again, same = study_at(tmp_path)
    assert again.replay(same) == [2]
    assert same.trials[2].value == told
    drawn = {r.key: r.values[0] for r in session_of(again, same).releases()}
    assert same.trials[2].user_attrs["privbo:release"] == drawn["2"]
    assert again.guarantee(same).protected


class _Deaf:
    """A trial whose attributes never reach the study."""

    def __init__(self, trial):
        self._trial = trial

    def __getattr__(self, name):
        return getattr(self._trial, name)

    def set_user_attr(self, key, value):
        pass


def test_without_privacy_and_with_other_samplers_values_are_releases_and_no_draw_is_shown():
    with warnings.catch_warnings(action="ignore"):
        sampler = make_sampler(mu=math.inf)
        plain = optuna.create_study(sampler=sampler)
        plain.optimize(sampler.private(squares))
    private = private_objective(squares, mu=1.0, n_trials=4)
    others = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    others.optimize(private)
    for study in (plain, others):
        assert all("privbo:release" not in t.user_attrs for t in study.trials)
    assert [v for _, _, v in private.history(others).values] == [t.value for t in others.trials]
    assert [v for _, _, v in sampler.history(plain).values] == [t.value for t in plain.trials]


class Twofold(float):
    """Equals every number, and is written as its own."""

    def __eq__(self, other):
        return True

    __hash__ = float.__hash__


class Role(str):
    """Ends as it is asked to."""

    def removesuffix(self, suffix, /):
        return "start"


def test_what_only_looks_like_the_samplers_own_attributes_unprotects():
    """A study in memory keeps objects: a subclass may compare as one thing and show another."""
    sampler, study = begun_study()
    rewards = ldp_objective(lambda trial: trial.suggest_float("x", 0, 1), epsilon=1.0, bound=1.0)

    def shows_a_role(trial):
        value = sampler.private(squares)(trial)
        trial.set_user_attr("privbo:role", Role("0.7654321"))
        return value

    def shows_a_release(trial):
        value = rewards(trial)
        marker = {**trial.user_attrs["privbo:play"], "release": Twofold(0.7654321)}
        trial.set_user_attr("privbo:play", marker)
        return value

    other = optuna.create_study(direction="maximize")
    for one, objective in ((study, shows_a_role), (other, shows_a_release)):
        with warnings.catch_warnings(action="ignore", category=PrivacyWarning):
            one.optimize(objective, n_trials=1)
            claim = (sampler if one is study else rewards).guarantee(one)
        assert not claim.protected


def test_evaluations_that_the_study_never_heard_of_are_counted(tmp_path, monkeypatch):
    """Interrupted between the ledger's commit and the study's own mark."""
    rewards = ldp_objective(
        lambda trial: trial.suggest_float("x", 0, 1),
        epsilon=1.0, bound=1.0, vault=f"sqlite:///{tmp_path}/v.db", user_id="Jane",
    )  # fmt: skip
    study = optuna.create_study(direction="maximize")
    study.optimize(rewards, n_trials=2)
    kept = optuna.storages.InMemoryStorage.set_trial_user_attr

    def cut(storage, trial, name, value):
        if name == "privbo:play":
            raise KeyboardInterrupt
        kept(storage, trial, name, value)

    with monkeypatch.context() as patched:
        patched.setattr(optuna.storages.InMemoryStorage, "set_trial_user_attr", cut)
        with pytest.raises(KeyboardInterrupt):
            study.optimize(rewards, n_trials=1)
    claim = rewards.guarantee(study)
    assert (claim.n_evaluations, claim.most_evaluations, claim.epsilon_most) == (3, 3, 3.0)
