"""Privatised rewards in Optuna: every sampler, worker, resumption and misuse."""

import gc
import itertools
import json
import math
import pickle
from collections import Counter
from contextlib import suppress

import numpy as np
import optuna
import pytest
from optuna.distributions import FloatDistribution, IntDistribution
from optuna.storages import RetryHeartbeatStaleTrialCallback
from optuna.trial import TrialState

from optuna_samplers import (
    DUETSSampler,
    LDPATAGPUCBSampler,
    LDPGPUCBSampler,
    LDPMoMAGPUCBSampler,
    LDPTGPUCBSampler,
    ldp_objective,
)
from privbo_plugins.errors import (
    BudgetExceededError,
    ObjectiveFailedError,
    PrivacyError,
    PrivacyWarning,
    UtilityWarning,
    VaultError,
)
from privbo_plugins.privacy.noise import InsecureNoise
from tests.engine.helpers import NoNoise
from tests.inside import algorithm_of
from tests.optuna_samplers.runs import rows

pytestmark = [
    pytest.mark.usefixtures("quiet"),
    pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning"),
]

GUARANTEE, PLAY, EPOCH = "privbo:guarantee", "privbo:play", "privbo:epoch"
X = FloatDistribution(0, 1)

OURS = {
    "gp": LDPGPUCBSampler,
    "tgp": LDPTGPUCBSampler,
    "ata": LDPATAGPUCBSampler,
    "moma": LDPMoMAGPUCBSampler,
}
FAMILY = pytest.mark.parametrize("kind", OURS)


def make(kind="gp", epsilon=1.0, **settings):
    """One of our samplers; two replays an epoch where there are replays."""
    known = {"value_range": (0.0, 1.0), "seed": 3, "n_trials": 30}
    if kind == "moma":
        known["replays"] = 2
    return OURS[kind](epsilon, **(known | settings))


def peak(trial):
    """Two parameters; a reward in [0, 1]."""
    x, n = trial.suggest_float("x", 0, 1), trial.suggest_int("n", 0, 4)
    return 1 - abs(x - 0.6) * 0.5 - abs(n - 3) * 0.1


def line(trial):
    """One parameter that is the reward."""
    return float(trial.suggest_float("x", 0, 1))


def wrapped(objective=line, **settings):
    """A wrapped objective; Laplace noise, so that no two releases are equal."""
    known = {"epsilon": 1.0, "value_range": (0.0, 1.0), "mechanism": "laplace"}
    return ldp_objective(objective, **(known | settings))


def check_protected(private, study, n_evaluations):
    """That the guarantee holds, here and in the study, and that all values are releases."""
    guarantee = private.guarantee(study)
    assert guarantee.protected, str(guarantee)
    assert guarantee.n_evaluations == n_evaluations
    assert guarantee.epsilon_evaluation == 1.0
    assert study.user_attrs[GUARANTEE] == guarantee.lasting
    assert json.loads(json.dumps(guarantee.to_dict()))["protected"] is True
    for trial in study.get_trials(states=(TrialState.COMPLETE,)):
        assert trial.value == trial.user_attrs[PLAY]["release"]


def check_exposed(guarantee, study=None):
    assert not guarantee.protected
    assert guarantee.epsilon == guarantee.epsilon_evaluation == math.inf
    assert str(guarantee).startswith("NOT PROTECTED")
    if study is not None:
        assert study.user_attrs[GUARANTEE].startswith("NOT PROTECTED")


# Any sampler ----------------------------------------------------------------------------------


def _grid():
    return optuna.samplers.GridSampler({"x": [0.0, 0.25, 0.5, 1.0], "n": [0, 2, 4]}, seed=0)


THEIRS = {
    "tpe": ("optuna", lambda: optuna.samplers.TPESampler(seed=0, n_startup_trials=4)),
    "random": ("optuna", lambda: optuna.samplers.RandomSampler(seed=0)),
    "cmaes": ("cmaes", lambda: optuna.samplers.CmaEsSampler(seed=0, n_startup_trials=2)),
    "gp": ("torch", lambda: optuna.samplers.GPSampler(seed=0, n_startup_trials=2)),
    "grid": ("optuna", _grid),
    "qmc": ("optuna", lambda: optuna.samplers.QMCSampler(seed=0)),
    "fixed": (
        "optuna",
        lambda: optuna.samplers.PartialFixedSampler({"n": 2}, optuna.samplers.TPESampler(seed=0)),
    ),
    **{f"our {name}": ("optuna", lambda name=name: make(name)) for name in OURS},
    **{
        f"fixed {name}": (
            "optuna",
            lambda name=name: optuna.samplers.PartialFixedSampler({"n": 2}, make(name)),
        )
        for name in OURS
    },
}


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
@pytest.mark.parametrize(("needs", "build"), THEIRS.values(), ids=THEIRS.keys())
def test_every_sampler_learns_from_releases_only(needs, build, direction):
    pytest.importorskip(needs)
    private = wrapped(peak)
    study = optuna.create_study(sampler=build(), direction=direction)
    study.optimize(private, n_trials=9)
    assert [t.state for t in study.trials] == [TrialState.COMPLETE] * 9
    check_protected(private, study, 9)
    assert len({t.value for t in study.trials}) == 9
    assert not {t.value for t in study.trials} & {peak(t) for t in map(_fixed, study.trials)}


def _fixed(trial):
    return optuna.trial.FixedTrial(trial.params)


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
@pytest.mark.parametrize(
    ("returned", "shown"),
    [(1.5, 1.5), ([0.5], 0.5), (-7.0, -2.0), (1e308, 3.0), (math.nan, None), (-math.inf, None),
     ("a", None), ([None], None)],
    ids=lambda value: str(value)[:9],
)  # fmt: skip
def test_a_reward_is_clipped_and_anything_odd_completes_as_the_unwanted_end(
    returned, shown, direction
):
    """A trial that fails for some users would tell of them."""
    private = wrapped(lambda _: returned, noise=NoNoise(0), value_range=(-2.0, 3.0))
    study = optuna.create_study(direction=direction)
    study.optimize(private, n_trials=1)
    worst = -2.0 if direction == "maximize" else 3.0
    assert study.trials[0].value == pytest.approx(worst if shown is None else shown)


# Coming back, and other processes -------------------------------------------------------------


def test_a_pickled_objective_whose_vault_has_ended_counts_no_named_users():
    study = optuna.create_study()
    named, unnamed = pickle.dumps(wrapped(user_id="Jane")), pickle.dumps(wrapped())
    with pytest.raises(VaultError, match="has ended"):
        study.optimize(pickle.loads(named), n_trials=1)
    private = pickle.loads(unnamed)
    study.optimize(private, n_trials=2)
    check_protected(private, study, 2)


def test_named_users_need_one_vault(tmp_path):
    study = optuna.create_study()
    study.optimize(wrapped(user_id="Jane"), n_trials=1)
    for vault in (None, f"sqlite:///{tmp_path}/vault.db"):
        ran = []
        private = wrapped(lambda trial, ran=ran: ran.append(1) or 0.5, user_id="Joe", vault=vault)
        with pytest.raises(VaultError, match="Another vault"):
            study.optimize(private, n_trials=1)
        assert not ran


@pytest.mark.usefixtures("study_tables")
def test_a_vault_serves_studies_of_one_name_one_after_the_other(tmp_path):
    """A study deleted and made again is another with new draws; what its users paid stays paid."""
    url, vault = f"sqlite:///{tmp_path}/study.db", f"sqlite:///{tmp_path}/vault.db"
    values = []
    for _ in range(2):
        study = optuna.create_study(storage=url, study_name="s")
        private = wrapped(vault=vault, user_id="Jane", user_budget=4.0)
        study.optimize(private, n_trials=2)
        check_protected(private, study, 2)
        assert private.guarantee(study).epsilon == len(values) + 2
        values += [trial.value for trial in study.trials]
        optuna.delete_study(study_name="s", storage=url)
    assert len(set(values)) == 4
    study = optuna.create_study(storage=url, study_name="s")
    with pytest.raises(BudgetExceededError, match=r"user_budget=4, in all runs"):
        study.optimize(wrapped(vault=vault, user_id="Jane", user_budget=4.0), n_trials=1)


# Replays --------------------------------------------------------------------------------------


def _changing():
    rewards = itertools.cycle([0.9, 0.1])
    return lambda trial: next(rewards)


@pytest.mark.parametrize("user", [None, "Jane"])
def test_a_second_call_shows_the_same_release(user, tmp_path):
    study, vault = optuna.create_study(), f"sqlite:///{tmp_path}/vault.db"
    private = wrapped(_changing(), user_id=user, user_budget=user and 1.0, vault=vault)
    trial = study.ask()
    release = private(trial)
    assert private(trial) == release
    other = wrapped(_changing(), user_id=user, user_budget=user and 1.0, vault=vault)
    assert other(trial) == release
    study.tell(trial, release)
    check_protected(private, study, 1)
    assert private.guarantee(study).most_evaluations == 1


@pytest.mark.parametrize("died", ["before the release", "after the release"])
def test_a_retry_shows_the_same_release(died):
    study, asked = optuna.create_study(), []
    private = wrapped(lambda trial: asked.append(trial.number) or line(trial), user_id="Jane")
    trial = study.ask()
    line(trial)
    release = private(trial) if died == "after the release" else None
    study.tell(trial, state=TrialState.FAIL)
    RetryHeartbeatStaleTrialCallback()(study, study.trials[0])
    study.optimize(private, n_trials=2)
    assert study.trials[1].params == study.trials[0].params
    assert release is None or study.trials[1].value == release
    check_protected(private, study, 2)
    assert private.guarantee(study).most_evaluations == 2
    assert "trials failed" in private.guarantee(study).details()


@pytest.mark.parametrize("how", ["a new wrapper", "a pickled wrapper"])
def test_a_retry_in_a_process_with_another_vault_draws_nothing(how):
    study = optuna.create_study()
    private = wrapped(line)
    pickled, trial = pickle.dumps(private), study.ask()
    release = private(trial)
    study.tell(trial, state=TrialState.FAIL)
    RetryHeartbeatStaleTrialCallback()(study, study.trials[0])
    del private
    gc.collect()  # and with it its vault
    other = wrapped(line) if how == "a new wrapper" else pickle.loads(pickled)
    study.optimize(other, n_trials=1)
    shown = {t.user_attrs[PLAY]["release"] for t in study.trials}
    assert shown == {release} or not other.guarantee(study).protected


# MoMA: replays of a point ---------------------------------------------------------------------


def _epochs(study):
    found = {}
    for trial in study.get_trials(states=(TrialState.COMPLETE,)):
        if EPOCH in trial.system_attrs:
            found.setdefault(trial.system_attrs[EPOCH], []).append(trial)
    return found


def _points(trials):
    return Counter(json.dumps(t.params, sort_keys=True) for t in trials)


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("declared", [True, False])
def test_moma_evaluates_each_epoch_k_times(k, declared):
    space = {"x": X, "n": IntDistribution(0, 4)} if declared else None
    sampler = make("moma", replays=k, search_space=space)
    study = optuna.create_study(sampler=sampler)
    study.optimize(sampler.private(peak), n_trials=4 * k + (not declared))
    epochs = _epochs(study)
    assert set(epochs) == set(range(4))
    assert [list(_points(epochs[e]).values()) for e in range(4)] == [[k]] * 4
    assert (EPOCH in study.trials[0].system_attrs) is declared
    sampler.recommend(study)
    assert algorithm_of(sampler, study).n == 4


def test_moma_shares_an_epoch_among_threads():
    n_jobs = 4
    sampler = make("moma", replays=3, search_space={"x": X})
    study = optuna.create_study(sampler=sampler)
    study.optimize(sampler.private(line), n_trials=24, n_jobs=n_jobs)
    sampler.recommend(study)
    n, epochs = algorithm_of(sampler, study).n, _epochs(study)
    assert n >= 1
    for e in range(n):
        assert max(_points(epochs[e]).values()) >= 3
        assert len(epochs[e]) <= 3 + 2 * (n_jobs - 1)  # what was out when it became complete
    check_protected(sampler, study, 24)


def test_moma_replays_what_failed():
    sampler = make("moma", replays=3, search_space={"x": X})

    def fails(trial):
        reward = line(trial)
        if trial.number % 3 == 1:
            raise OSError("no connection")
        return reward

    study = optuna.create_study(sampler=sampler)
    study.optimize(sampler.private(fails), n_trials=13, catch=(ObjectiveFailedError,))
    epochs = _epochs(study)
    assert [list(_points(epochs[e]).values()) for e in range(3)] == [[3]] * 3
    check_protected(sampler, study, 9)


# Arms and spaces ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grid", "settings"),
    [((0, 3, 1), {"features": np.arange(4.0)}), ((3, 9, 2), {"kernel_matrix": np.eye(4)}),
     ((-5, -2, 1), {"kernel_matrix": np.eye(4)})],
)  # fmt: skip
@FAMILY
def test_arms_are_counted_from_the_lower_end(kind, grid, settings):
    low, high, step = grid
    sampler = make(kind, 30.0, mechanism="laplace", noise=InsecureNoise(1), **settings)
    study = optuna.create_study(sampler=sampler, direction="maximize")
    if kind != "moma":  # which learns from its own epochs alone
        for number in 3 * list(range(low, high + 1, step)):
            study.enqueue_trial({"arm": number})

    def arm(trial):
        number = (trial.suggest_int("arm", low, high, step=step) - low) // step
        return [0.0, 0.01, 0.02, 0.2][number]  # small: ATA cuts large ones off at first

    study.optimize(sampler.private(arm), n_trials=16)
    assert {t.params["arm"] for t in study.trials} <= set(range(low, high + 1, step))
    assert sampler.recommend(study) == {"arm": high}


def _seven_arms(trial):
    return float(trial.suggest_int("arm", 0, 6) / 6)


def test_arms_that_the_objective_does_not_have_are_told_clearly():
    sampler = make(epsilon=math.inf, kernel_matrix=np.eye(4))
    study = optuna.create_study(sampler=sampler)
    with pytest.warns(PrivacyWarning) as caught:
        with pytest.raises(ValueError, match="one integer parameter with 4"):
            study.optimize(_seven_arms, n_trials=2)
    assert [one.category for one in caught].count(PrivacyWarning) == 1


@FAMILY
def test_conditional_and_growing_spaces(kind):
    sampler = make(kind)

    def branches(trial):
        model = trial.suggest_categorical("model", ["a", "b"])
        reward = trial.suggest_float("x", 0, 1)
        if model == "b" and trial.number > 0:  # whatever the noise says, one trial has no y
            reward += trial.suggest_float("y", 0, 1)
        if trial.number > 8:
            reward += trial.suggest_int("late", 0, 3)
        return float(reward / 5)

    study = optuna.create_study(sampler=sampler, direction="maximize")
    study.optimize(sampler.private(branches), n_trials=12)
    check_protected(sampler, study, 12)
    assert set(sampler.recommend(study)) == {"model", "x"}


# Where nothing is protected -------------------------------------------------------------------


def test_a_study_of_two_mechanisms_is_not_claimed():
    study = optuna.create_study()
    first, second = wrapped(), wrapped(epsilon=0.5)
    study.optimize(first, n_trials=1)
    study.optimize(second, n_trials=1)
    for private in (first, second, make(mechanism="laplace")):
        check_exposed(private.guarantee(study), study)
        assert "another mechanism" in private.guarantee(study).details()


# Users ----------------------------------------------------------------------------------------


def _names(*names):
    return lambda trial: names[trial.number % len(names)]


def test_a_budget_is_refused_before_the_objective_runs():
    ran = []
    private = wrapped(
        lambda trial: ran.append(trial.number) or 0.5,
        user_id=_names("Jane", "Jane", "Joe", "Jane"),
        user_budget=2.0,
    )
    study = optuna.create_study()
    with pytest.raises(BudgetExceededError, match="user_budget=2, in all runs"):
        study.optimize(private, n_trials=4)
    assert ran == [0, 1, 2]
    assert PLAY not in study.trials[3].user_attrs
    check_protected(private, study, 3)
    assert private.guarantee(study).epsilon == 2.0


def test_a_user_function_that_names_nobody_is_refused_and_nothing_is_drawn(tmp_path):
    """Each of its evaluations would count as another user's."""
    ran = []
    vault = {"vault": f"sqlite:///{tmp_path}/vault.db", "user_budget": 2.0}
    private = wrapped(lambda trial: ran.append(1) or 0.5, user_id=_names(None), **vault)
    study = optuna.create_study()
    study.optimize(private, n_trials=6, catch=(ValueError,))
    assert not ran
    assert not study.get_trials(states=(TrialState.COMPLETE,))
    assert not any(PLAY in trial.user_attrs for trial in study.trials)
    charged = "SELECT count(*) FROM privbo_events WHERE kind = 'paid'"
    assert rows(tmp_path / "vault.db", charged) == [(0,)]
    with pytest.raises(ValueError, match="name must be a string, bytes or an integer"):
        private(study.ask())
    wrapped(user_id="Jane", **vault)(study.ask())
    assert rows(tmp_path / "vault.db", charged) == [(1,)]


@pytest.mark.parametrize("who", ["a wrapper without names", "the sampler"])
def test_named_users_are_not_claimed_to_have_paid_once(who):
    sampler = make(mechanism="laplace")
    study = optuna.create_study(sampler=sampler)
    private = sampler.private(line, user_id="Jane")
    study.optimize(private, n_trials=5)
    assert private.guarantee(study).epsilon == 5.0
    asked = sampler if who == "the sampler" else sampler.private(line)
    assert asked.guarantee(study).epsilon >= 5.0


# Guards ---------------------------------------------------------------------------------------


def test_the_plugins_own_attributes_are_closed():
    def erases(trial):
        trial.set_user_attr("privbo:more", 1, public=True)
        trial.set_user_attr("privbo:public", [], public=True)
        return 0.5

    private = wrapped(erases)
    study = optuna.create_study()
    with suppress(PrivacyError, ValueError):
        study.optimize(private, n_trials=1)
    guarantee = private.guarantee(study)
    assert not guarantee.protected or "set_user_attr public" in guarantee.details()


# The end -------------------------------------------------------------------------------------

NO_MORE = optuna.study.MaxTrialsCallback(20, states=None)
"""Ends a loop that does not end by itself."""


@pytest.mark.parametrize("kind", OURS)
def test_a_loop_ends_with_the_trials_that_are_planned(kind):
    sampler = make(kind, n_trials=6)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    private = sampler.private(line)
    study.optimize(private, callbacks=[NO_MORE])  # no n_trials=
    assert len(study.trials) == 6
    assert sampler.finished(study)
    with pytest.warns(
        UtilityWarning, match="All 6 trials that n_trials= plans have a value: raise it"
    ):
        study.optimize(private, n_trials=3)
    assert len(study.trials) == 7
    study.optimize(private, callbacks=[NO_MORE])  # is warned once
    assert len(study.trials) == 8
    larger = make(kind, n_trials=10)
    study.sampler = larger
    study.optimize(larger.private(line), callbacks=[NO_MORE])
    assert len(study.trials) == 10


def test_agents_go_on_after_the_trials_that_are_planned_and_are_warned_once():
    sampler = DUETSSampler(2, epsilon=1.0, value_range=(0, 1), n_trials=6, seed=0)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    private = sampler.private(line)
    study.optimize(private, n_trials=6)
    with pytest.warns(UtilityWarning, match="All 6 trials that n_trials= plans"):
        study.optimize(private, n_trials=1)
    study.optimize(private, n_trials=2)
    assert len(study.trials) == 9
