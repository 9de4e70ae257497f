"""Parameters with a single value, and ranges: what an objective computed must not be stored."""

import json

import numpy as np
import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState

from optuna_samplers import ldp_objective
from privbo_plugins.errors import PrivacyWarning, SpaceChangedError
from tests.drivers import ON_STUDIES
from tests.optuna_samplers.runs import RECORDS, begun_study, make_sampler, rows, squares

pytestmark = [
    pytest.mark.usefixtures("quiet"),
    pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning"),
]

CHANGED = "parameters with a single value differ between trials"


EVERY_SYSTEM = pytest.mark.parametrize("make", ON_STUDIES.values(), ids=ON_STUDIES)

SUGGESTIONS = {
    "float": lambda t, m: t.suggest_float("thr", m, m),
    "log": lambda t, m: t.suggest_float("thr", m, m, log=True),
    "rounded": lambda t, m: t.suggest_float("thr", m, m + 0.5, step=1.0),
    "int": lambda t, m: t.suggest_int("thr", int(1e9 * m), int(1e9 * m)),
    "rounded int": lambda t, m: t.suggest_int("thr", int(1e9 * m), int(1e9 * m) + 1, step=2),
    "choice": lambda t, m: t.suggest_categorical("thr", [m]),
    "uniform": lambda t, m: t.suggest_uniform("thr", m, m),
    "by name": lambda t, m: t.suggest_float(name="thr", low=m, high=m),
}


def check_exposed(owner, study):
    guarantee = owner.guarantee(study)
    assert not guarantee.protected
    assert any(CHANGED in reason for reason in guarantee.reasons)
    assert study.user_attrs["privbo:guarantee"].startswith("NOT PROTECTED")


@pytest.mark.parametrize(
    ("system", "suggest"),
    [(system, "float") for system in ON_STUDIES] + [("records", way) for way in SUGGESTIONS],
)
@pytest.mark.filterwarnings("ignore:.*suggest_uniform:FutureWarning")
@pytest.mark.filterwarnings("ignore:The distribution is specified:UserWarning")
def test_a_computed_constant_reaches_the_study_in_the_first_trial_at_most(system, suggest):
    hosted = ON_STUDIES[system]()

    def objective(trial):
        result = hosted.objective(trial)
        SUGGESTIONS[suggest](trial, float(np.mean(result)) + trial.number / 7)
        return result

    private, study = hosted.begun(1, objective)
    with (
        pytest.warns(PrivacyWarning, match=CHANGED),
        pytest.raises(SpaceChangedError, match="single value is stored") as raised,
    ):
        study.optimize(private, n_trials=1)
    assert str(RECORDS.mean())[:6] not in str(raised.value)
    assert study.trials[1].state == TrialState.FAIL
    assert set(study.trials[1].params) == set(study.trials[1].distributions) == {"x"}
    check_exposed(hosted.owner(private), study)
    if hasattr(hosted.sampler, "guarantee"):
        check_exposed(hosted.sampler, study)


@EVERY_SYSTEM
def test_a_computed_range_is_refused_before_it_is_stored(make):
    hosted = make()

    def objective(trial):
        result = hosted.objective(trial)
        m = float(np.mean(result)) + trial.number / 7
        trial.suggest_float("thr", m, m + 1.0)
        return result

    study = hosted.study()
    study.optimize(hosted.private(objective), n_trials=1)
    with pytest.raises(SpaceChangedError, match=r"another range.*start a new study"):
        study.optimize(hosted.private(objective), n_trials=1)
    assert set(study.trials[1].params) == set(study.trials[1].distributions) == {"x"}


def test_parameters_that_only_some_private_rewards_have_stay_allowed():
    hosted = ON_STUDIES["any sampler, local"]()

    def objective(trial):
        kind = trial.suggest_categorical("kind", ["a", "b"])
        return float(trial.suggest_float(f"x_{kind}", 0, 1))

    private, study = hosted.begun(0, objective)
    study.optimize(private, n_trials=12)
    assert {name for t in study.trials for name in t.params} == {"kind", "x_a", "x_b"}
    assert private.guarantee(study).protected


# Declared spaces --------------------------------------------------------------------------------

SPACE = {"x": FloatDistribution(0, 1), "thr": FloatDistribution(0.5, 0.5)}


DECLARING = [name for name in ON_STUDIES if name != "any sampler, local"]
"""Whose samplers take a search space; the other is for any sampler."""


@pytest.mark.parametrize(
    ("system", "declared", "name", "value"),
    [(system, True, *one) for system in DECLARING for one in (("thr", 0.25), ("other", 0.5))]
    + [(system, False, "thr1", 0.5) for system in ON_STUDIES],
)
def test_a_constant_that_the_space_does_not_have_is_a_change(system, declared, name, value):
    """A space is declared or the first trial's: a fresh name would carry what no old one can."""
    hosted = ON_STUDIES[system](**({"search_space": SPACE} if declared else {}))

    def objective(trial):
        result = hosted.objective(trial)
        if declared or trial.number:
            trial.suggest_float(name, value, value)
        return result

    private, study = hosted.begun(0 if declared else 1, objective)
    with pytest.warns(PrivacyWarning, match=CHANGED), pytest.raises(SpaceChangedError):
        study.optimize(private, n_trials=1)
    assert set(study.trials[-1].params) == {"x"}
    check_exposed(hosted.owner(private), study)


@pytest.mark.parametrize("system", DECLARING)
def test_declared_constants_pass(system):
    hosted = ON_STUDIES[system](search_space=SPACE)

    def objective(trial):
        if trial.number != 1:
            trial.suggest_float("thr", 0.5, 0.5)
        return hosted.objective(trial)

    private, study = hosted.begun(3, objective)
    assert hosted.owner(private).guarantee(study).protected


# What the vault remembers -----------------------------------------------------------------------


def with_constant(value):
    def objective(trial):
        trial.suggest_float("thr", value, value)
        return squares(trial)

    return objective


def begun(tmp_path, value=0.5):
    url = f"sqlite:///{tmp_path}/vault.db"
    sampler = make_sampler(vault=url)
    study = optuna.create_study(sampler=sampler, study_name="constants")
    study.optimize(sampler.private(with_constant(value)), n_trials=1)
    return url, study


def frozen(tmp_path):
    told = "SELECT payload FROM privbo_events WHERE kind = 'frozen' ORDER BY seq DESC"
    return dict(json.loads(rows(tmp_path / "vault.db", told)[0][0]))


def go_on(url, study, value):
    sampler = make_sampler(vault=url)
    study.sampler = sampler
    study.optimize(sampler.private(with_constant(value)), n_trials=1)
    return sampler


def test_constants_are_frozen_in_the_vault_for_every_worker(tmp_path):
    url, study = begun(tmp_path)
    assert list(frozen(tmp_path)["constants"]) == ["thr"]
    assert go_on(url, study, 0.5).guarantee(study).protected
    with pytest.warns(PrivacyWarning, match=CHANGED), pytest.raises(SpaceChangedError):
        go_on(url, study, 0.25)
    assert study.trials[2].params == {}


def test_ask_and_tell_refuses_other_constants_too():
    sampler, study = begun_study()
    for value, refused in ((0.5, False), (0.25, True)):
        trial = study.ask()
        trial.suggest_float("thr", value, value)
        losses = squares(trial)
        if refused:
            with pytest.warns(PrivacyWarning, match=CHANGED), pytest.raises(SpaceChangedError):
                sampler.tell_private(trial, losses)
        else:
            sampler.tell_private(trial, losses)
    check_exposed(sampler, study)


def test_constants_of_a_trial_that_failed_before_count():
    sampler, study = begun_study()

    def objective(trial):
        trial.suggest_float("thr", 0.1 * trial.number, 0.1 * trial.number)
        return squares(trial) if trial.number else RECORDS[:0]

    study.optimize(sampler.private(objective), n_trials=1, catch=(ValueError,))
    with pytest.warns(PrivacyWarning, match=CHANGED):
        study.optimize(sampler.private(objective), n_trials=1)
    check_exposed(sampler, study)


def test_rewards_copied_from_studies_with_other_constants_are_noticed():
    copies = []
    for value in (0.5, 0.25):
        private = ldp_objective(
            lambda t, v=value: t.suggest_float("thr", v, v), epsilon=1.0, value_range=(0, 1)
        )
        study = optuna.create_study()
        study.optimize(private, n_trials=1)
        copies += study.trials
    both = optuna.create_study()
    both.add_trials(copies)
    check_exposed(private, both)


# Ranges and names in trials of any state --------------------------------------------------------

DIFFERS = "parameters or ranges that are not those of the other trials"


def check_differs(guarantee):
    assert not guarantee.protected
    assert any(DIFFERS in reason for reason in guarantee.reasons)


@EVERY_SYSTEM
def test_ranges_of_trials_that_fail_before_any_completes_are_refused_as_well(make):
    hosted = make()

    def objective(trial):
        trial.suggest_float("x", 0.0, float(RECORDS[trial.number]))
        raise KeyError

    study = hosted.study()
    study.optimize(hosted.private(objective), n_trials=3, catch=(Exception,))
    assert [list(trial.distributions) for trial in study.trials] == [["x"], [], []]


@pytest.mark.filterwarnings("ignore::privbo_plugins.errors.PrivacyWarning")
@EVERY_SYSTEM
@pytest.mark.parametrize("state", [TrialState.FAIL, TrialState.PRUNED, TrialState.RUNNING])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_stored_range_that_differs_is_a_reason_in_trials_of_any_state(make, state, when):
    hosted = make()
    other = optuna.trial.create_trial(
        state=state,
        params={"x": 0.1},
        distributions={"x": FloatDistribution(0, float(RECORDS[0]))},
    )
    private, study = hosted.begun()
    if when == "after":
        study.optimize(private, n_trials=1)
        study.add_trial(other)
    else:  # two at once, so that neither saw what the other was about to store
        trial = study.ask()
        trial.suggest_float("x", 0.0, 1.0)
        study.add_trial(other)
        study.add_trial(other)
        told = hosted.private(lambda t: hosted.outcome(t.params["x"]))  # it has its parameters
        study.tell(trial, told(trial))
    check_differs(hosted.owner(private).guarantee(study))


def test_names_of_failed_trials_that_the_space_does_not_have_are_a_reason():
    sampler, study = begun_study()

    def objective(trial):
        if trial.number < 2:
            trial.suggest_float(f"x{RECORDS[trial.number]}", 0, 1)
            raise KeyError
        return squares(trial)

    study.optimize(sampler.private(objective), n_trials=2, catch=(Exception,))
    with pytest.warns(PrivacyWarning, match=DIFFERS):
        study.optimize(sampler.private(objective), n_trials=1)
    check_differs(sampler.guarantee(study))
    assert study.user_attrs["privbo:guarantee"].startswith("NOT PROTECTED")


def test_records_as_parameters_of_an_added_trial_are_a_reason():
    sampler, study = begun_study(1)
    names = {f"r{i}": float(y) for i, y in enumerate(RECORDS)}
    study.add_trial(
        optuna.trial.create_trial(
            state=TrialState.FAIL,
            params=names,
            distributions=dict.fromkeys(names, FloatDistribution(0, 1)),
        )
    )
    check_differs(sampler.guarantee(study))


def test_ask_and_tell_with_another_range_is_a_reason():
    sampler, study = begun_study()
    for high in (1.0, 1.0, float(1 + RECORDS[0])):
        trial = study.ask()
        losses = (trial.suggest_float("x", 0.0, high) - RECORDS) ** 2
        if high == 1.0:
            sampler.tell_private(trial, losses)
            continue
        with pytest.raises(SpaceChangedError):
            sampler.tell_private(trial, losses)
        study.tell(trial, state=TrialState.FAIL)
    check_differs(sampler.guarantee(study))


@EVERY_SYSTEM
def test_the_same_constants_and_trials_that_fail_in_the_same_space_are_no_reason(make):
    hosted = make()

    def objective(trial):
        trial.suggest_float("thr", 0.5, 0.5)
        trial.suggest_categorical("model", ["tree"])
        trial.suggest_int("depth", 3, 3)
        result = hosted.objective(trial)
        if trial.number in (0, 2):
            raise KeyError
        return result

    private, study = hosted.begun(0, objective)
    study.optimize(private, n_trials=4, catch=(Exception,))
    assert [trial.state.name for trial in study.trials] == ["FAIL", "COMPLETE"] * 2
    assert hosted.owner(private).guarantee(study).protected


def test_a_constant_that_no_completed_reward_has_is_noticed():
    hosted = ON_STUDIES["any sampler, local"]()
    private, study = hosted.begun(1)
    trial = study.ask()
    trial.suggest_float("thr", float(RECORDS[0]), float(RECORDS[0]))
    study.tell(trial, state=TrialState.FAIL)
    check_exposed(hosted.owner(private), study)
    study.optimize(private, n_trials=1)
    assert study.user_attrs["privbo:guarantee"].startswith("NOT PROTECTED")
