"""DUETS in Optuna: draws, epochs, workers that race, fail or come back."""

import json
import math
import pickle
from collections import Counter

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import RetryHeartbeatStaleTrialCallback
from optuna.trial import TrialState

from optuna_samplers import DUETSSampler
from privbo_plugins.algorithms.protocols import ATTEMPTS
from privbo_plugins.errors import UtilityWarning

pytestmark = [
    pytest.mark.usefixtures("quiet"),
    pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning"),
    pytest.mark.filterwarnings("ignore::privbo_plugins.errors.PrivacyWarning"),
]

DRAW, CLAIM, SUMMARY = "privbo:draw", "privbo:claim", "privbo:duets"
SPACE = {
    "x": FloatDistribution(0, 1),
    "rate": FloatDistribution(1e-5, 1.0, log=True),
    "n": IntDistribution(1, 9, step=2),
    "kind": CategoricalDistribution(["a", "b", "c"]),
}
LINE = {"x": FloatDistribution(0, 1)}


def make(n_agents=2, **settings):
    """A small sampler: epochs of 4, 8, 16 trials."""
    return DUETSSampler(
        n_agents, **({"discretisation": 64, "search_space": LINE, "seed": 3} | settings)
    )


def make_study(sampler, storage=None, **settings):
    known = {"study_name": "s", "direction": "maximize", "load_if_exists": True}
    return optuna.create_study(storage=storage, sampler=sampler, **(known | settings))


def peak(trial):
    """Largest at x = 0.3, with a little that depends on the point like noise."""
    x = float(trial.suggest_float("x", 0, 1))
    return 1 - (x - 0.3) ** 2 + 0.01 * math.sin(997 * x)


def mixed(trial):
    x = float(trial.suggest_float("x", 0, 1))
    rate = trial.suggest_float("rate", 1e-5, 1.0, log=True)
    n = trial.suggest_int("n", 1, 9, step=2)
    kind = trial.suggest_categorical("kind", ["a", "b", "c"])
    return x - abs(math.log10(rate) + 3) / 5 + n / 9 + (0.2 if kind == "b" else 0.0)


def draw_of(trial):
    if isinstance(trial, optuna.Trial):
        trial = trial.study._storage.get_trial(trial._trial_id)
    stored = trial.system_attrs.get(DRAW)
    return None if stored is None else tuple(stored)


def known(sampler, study):
    """What a sampler has made of a study, after reading all of it."""
    sampler.recommend(study)
    algorithm = sampler._state(study).scheduler.algorithm
    return algorithm


def state(sampler, study):
    """All that two processes must agree on."""
    algorithm = known(sampler, study)
    _, pending = sampler._synchronised(study, algorithm.space, None)
    evaluation = algorithm.ask(10**6, pending)
    return {
        "recommended": sampler.recommend(study),
        "digest": algorithm.public_state.active.digest,
        "status": algorithm.status(),
        "open": algorithm.open_slots(),
        "next": []
        if evaluation is None
        else [evaluation.x.tolist(), evaluation.epoch, evaluation.agent, evaluation.draw],
    }


def agreed(study, *samplers, **settings):
    """The state that given samplers, and a new one, reach on a study."""
    fresh = make(**settings)
    states = [
        state(s, optuna.load_study(study_name="s", storage=study._storage, sampler=s))
        for s in (fresh, *samplers)
    ]
    assert states == [states[0]] * len(states)
    return states[0]


# Draws and epochs -----------------------------------------------------------------------------


def test_trials_carry_epoch_agent_and_draw():
    study = make_study(make())
    study.optimize(peak, n_trials=12)
    slots = [(1, n, t) for t in range(2) for n in range(2)]
    slots += [(2, n, t) for t in range(4) for n in range(2)]
    assert [draw_of(t) for t in study.trials] == slots
    shown = [(t.user_attrs["privbo:epoch"], t.user_attrs["privbo:agent"]) for t in study.trials]
    assert shown == [slot[:2] for slot in slots]


def _asked(study, objective=peak):
    trial = study.ask()
    objective(trial)
    return trial


def test_the_space_is_found_where_it_is_not_declared():
    sampler = make(search_space=None)
    study = make_study(sampler)
    study.optimize(mixed, n_trials=6)
    assert [draw_of(t) is None for t in study.trials] == [True] + [False] * 5
    assert draw_of(study.trials[5]) == (2, 0, 0)
    assert len(known(sampler, study).evaluations) == 5  # a random one and an epoch of four
    agreed(study, sampler, search_space=None)


# What fails -----------------------------------------------------------------------------------


def _fail(study, trial, how):
    if how == "infinite":
        study.tell(trial, math.inf)
    elif how == "nan":
        study.tell(trial, math.nan, skip_if_finished=True)
    else:
        study.tell(trial, state=TrialState[how])


@pytest.mark.filterwarnings("ignore:The value nan is not acceptable")
@pytest.mark.parametrize("how", ["FAIL", "PRUNED", "infinite", "nan"])
@pytest.mark.parametrize("which", [0, 2])
def test_what_has_no_value_is_drawn_again_at_the_same_point(how, which):
    sampler = make(search_space=SPACE)
    study = make_study(sampler)
    trials = [_asked(study, mixed) for _ in range(3)]
    _fail(study, trials[which], how)
    again = _asked(study, mixed)
    assert draw_of(again) == draw_of(trials[which])
    assert again.params == trials[which].params
    assert draw_of(_asked(study, mixed)) == (1, 1, 1)


def test_a_retry_holds_the_draw_of_the_trial_that_it_repeats():
    sampler = make()
    study = make_study(sampler)
    study.optimize(peak, n_trials=2)
    stale = _asked(study)
    study.tell(stale, state=TrialState.FAIL)
    RetryHeartbeatStaleTrialCallback(max_retry=1)(study, study.trials[2])
    study.optimize(peak, n_trials=3)
    assert [draw_of(t) for t in study.trials[2:]] == [(1, 0, 1), (1, 0, 1), (1, 1, 1), (2, 0, 0)]
    assert study.trials[3].params == stale.params
    agreed(study, sampler)


@pytest.mark.parametrize("params", [{"x": 0.25}, {"x": 0.25, "kind": "b"}], ids=["x", "x, kind"])
def test_enqueued_trials_take_no_draw(params):
    sampler = make(search_space={"x": SPACE["x"], "kind": SPACE["kind"]})

    def objective(trial):
        kind = trial.suggest_categorical("kind", ["a", "b", "c"])
        return float(trial.suggest_float("x", 0, 1)) + (kind == "b")

    study = make_study(sampler)
    study.enqueue_trial(params)
    study.optimize(objective, n_trials=6)
    assert draw_of(study.trials[0]) is None
    assert study.trials[0].params.items() >= params.items()
    assert [draw_of(t) for t in study.trials[1:]][-1] == (2, 0, 0)
    assert len(known(sampler, study).evaluations) == 5


# Several processes ----------------------------------------------------------------------------


class Meddler:
    """Lets somebody else act just before a sampler's first claim reaches the storage."""

    def __init__(self, storage, action):
        self.storage, self.action, self.acted = storage, action, False
        self.write = storage.set_trial_system_attr
        storage.set_trial_system_attr = self

    def __call__(self, trial_id, key, value):
        if key == CLAIM and not self.acted:
            self.acted = True
            self.action()
        self.write(trial_id, key, value)


@pytest.mark.parametrize("tells", [False, True], ids=["runs", "is complete"])
@pytest.mark.parametrize("created_first", [True, False])
def test_of_two_that_race_for_a_draw_one_holds_it(created_first, tells):
    """The slower one read the study before the faster one claimed the draw."""
    slow, fast = make(), make()
    study = make_study(slow, optuna.storages.InMemoryStorage())
    beside = make_study(fast, study._storage)
    early = [beside.ask()] if not created_first else []

    def action():
        trial = early.pop() if early else beside.ask()
        reward = peak(trial)
        if tells:
            beside.tell(trial, reward)

    trial = study.ask()  # its parameters are drawn at the first suggestion
    Meddler(study._storage, action)
    peak(trial)
    draws = {t.number: draw_of(t) for t in study.get_trials(deepcopy=False)}
    assert sorted(draws) == [0, 1]
    assert draws.pop(trial.number) == (1, 1, 0)
    assert list(draws.values()) == [(1, 0, 0)]
    for open_trial in study.get_trials(states=(TrialState.RUNNING,)):
        study.tell(open_trial.number, peak(optuna.trial.FixedTrial(open_trial.params)))
    agreed(study, slow, fast)


# Coming back ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.usefixtures("study_tables")
def test_a_resumed_study_goes_on_as_if_it_had_not_stopped(tmp_path, seed):
    whole = make_study(make(seed=seed, search_space=SPACE))
    whole.optimize(mixed, n_trials=16)
    url = f"sqlite:///{tmp_path}/study.db"
    sampler = make(seed=seed, search_space=SPACE)
    for n in (3, 4, 1, 8):
        study = make_study(sampler, url)
        study.optimize(mixed, n_trials=n)
        sampler = (
            pickle.loads(pickle.dumps(sampler)) if n == 3 else make(seed=seed, search_space=SPACE)
        )
    assert [t.params for t in study.trials] == [t.params for t in whole.trials]
    assert state(sampler, study) == state(whole.sampler, whole)
    assert known(sampler, study).epoch == 3


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"seed": 2}, "study's first draw was drawn with 3: give it no seed="),
        ({"n_agents": 4}, "same settings, or use a new study"),
        ({"beta": 0.5}, "same settings, or use a new study"),
        ({"search_space": {"x": FloatDistribution(0, 2)}}, "same settings, or use a new study"),
    ],
    ids=str,
)
def test_other_settings_than_the_studys_are_refused(settings, text):
    study = make_study(make())
    study.optimize(peak, n_trials=6)
    study.sampler = make(**settings)
    with pytest.raises(ValueError, match=text):
        _asked(study)
    study.sampler = make(seed=None)  # takes the coins that the study has
    assert draw_of(_asked(study)) == (2, 0, 1)


# What is shown and claimed --------------------------------------------------------------------


def test_the_studys_attributes_follow_the_epochs(monkeypatch):
    written = []
    write = optuna.Study.set_user_attr

    def count(self, key, value):
        written.append(key)
        write(self, key, value)

    monkeypatch.setattr(optuna.Study, "set_user_attr", count)
    sampler = make()
    study = make_study(sampler)
    study.optimize(peak, n_trials=4)
    assert SUMMARY not in study.user_attrs
    study.optimize(peak, n_trials=5)
    assert written.count(SUMMARY) == 1
    shown = study.user_attrs[SUMMARY]
    assert shown == json.loads(json.dumps(known(sampler, study).status()))
    assert shown["reals_up"] > 0
    assert shown["reals_down"] > 0
    assert shown["reals_per_agent"] == shown["reals_up"] / 2 + shown["reals_down"]
    assert shown["epochs"][0]["share"] == shown["active_share"] <= 1
    study.optimize(peak, n_trials=3)
    for reader in (sampler, sampler, make()):
        reader.recommend(study)
    assert written.count(SUMMARY) == 2
    assert [e["epoch"] for e in study.user_attrs[SUMMARY]["epochs"]] == [1, 2]


# A draw without a number, and pictures ----------------------------------------------------------


def test_a_declared_parameter_that_is_not_suggested_ends_after_so_many_trials():
    sampler = make(search_space={"x": LINE["x"], "y": FloatDistribution(0, 1)})
    study = make_study(sampler)
    with pytest.warns(UtilityWarning, match="Trial 0 did not evaluate the point") as caught:
        study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=4 * ATTEMPTS + 1)
    assert len([w for w in caught if w.category is UtilityWarning]) == 1
    draws = Counter(draw_of(t) for t in study.trials[:-1])
    assert draws == {(1, n, t): ATTEMPTS for n in range(2) for t in range(2)}


def _one_draw_failed(times):
    """A study whose first draw failed so often, and whose others are done."""
    sampler = make(epsilon=4.0, value_range=(0, 1))
    study = make_study(sampler, optuna.storages.InMemoryStorage())
    for _ in range(times):
        study.tell(_asked(study), state=TrialState.FAIL)
    waiting = _asked(study)
    for _ in range(3):
        trial = _asked(study)
        study.tell(trial, peak(trial))
    study.tell(waiting, state=TrialState.FAIL)
    return sampler, study


def test_a_draw_that_is_given_up_is_not_taken_by_one_who_does_not_know_it():
    slow = make(epsilon=4.0, value_range=(0, 1))
    sampler, study = _one_draw_failed(ATTEMPTS - 2)
    beside = make_study(slow, study._storage)
    trial = beside.ask()

    def action():
        last = _asked(study)
        assert draw_of(last) == (1, 0, 0)
        study.tell(last, state=TrialState.FAIL)
        assert draw_of(_asked(study)) == (2, 0, 0)

    Meddler(study._storage, action)
    peak(trial)
    assert draw_of(trial) == (2, 1, 0)
    agreed(study, sampler, slow, epsilon=4.0, value_range=(0, 1))


@pytest.mark.parametrize(
    "stored",
    ["x", [1, 2], [-1, 0, 0], [1, 0, 10**9], {"a": 1}, True, [1, 0, "0"], [math.inf, 0, 0]],
    ids=str,
)
@pytest.mark.parametrize("name", [DRAW, CLAIM, "privbo:duets"])
@pytest.mark.parametrize("ended", ["COMPLETE", "RUNNING"])
def test_whatever_a_trial_holds_the_run_goes_on(stored, name, ended):
    sampler = make()
    study = make_study(sampler)
    study.optimize(peak, n_trials=1)
    study.add_trial(
        optuna.trial.create_trial(
            value=0.5 if ended == "COMPLETE" else None, params={"x": 0.3}, distributions=LINE,
            state=TrialState[ended], system_attrs={name: stored},
        )
    )  # fmt: skip
    study.optimize(peak, n_trials=3)
    assert [draw_of(t) for t in study.trials[2:]] == [(1, 1, 0), (1, 0, 1), (1, 1, 1)]
    assert sampler.status(study)["epoch"] == 2


def test_a_trial_that_never_ends_is_named():
    sampler = make()
    study = make_study(sampler)
    study.optimize(peak, n_trials=1)
    _asked(study)
    study.optimize(peak, n_trials=2 + 5)
    with pytest.warns(UtilityWarning, match=r"Epoch 1 waits for trials 1,.*heartbeat_interval="):
        study.optimize(peak, n_trials=1)
    study.optimize(peak, n_trials=1)  # once
    study.tell(1, state=TrialState.FAIL)
    study.optimize(peak, n_trials=2)
    assert draw_of(study.trials[-1]) == (2, 0, 0)


@pytest.mark.parametrize("seed", [0, 2**40])
def test_processes_of_one_seed_begin_at_different_points(seed):
    storage, begun = optuna.storages.InMemoryStorage(), []
    for _ in range(4):
        study = make_study(make(search_space=None, seed=seed), storage)
        begun.append(_asked(study, mixed).params)
    assert len({str(params) for params in begun}) == 4
    again = make_study(make(search_space=None, seed=seed))
    assert _asked(again, mixed).params == begun[0]
    assert len({begun[0]["x"], math.log10(begun[0]["rate"]) / 5 + 1}) == 2
