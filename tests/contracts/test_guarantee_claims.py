"""What a study shows is claimed only after looking at everything that it holds."""

import math
from contextlib import nullcontext
from functools import partial

import numpy as np
import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.samplers import RandomSampler
from optuna.trial import TrialState, create_trial

from optuna_samplers import LDPGPUCBSampler, POGPUCBSampler, ldp_objective
from privbo_plugins.errors import PrivacyError, PrivacyWarning, UtilityWarning, VaultError
from privbo_plugins.sessions.records import Session
from privbo_plugins.store.run import Run
from tests.drivers import ON_STUDIES
from tests.inside import looked_at, storage_of
from tests.leaks import hostile
from tests.optuna_samplers.runs import RECORDS, begun_study, make_sampler, squares

pytestmark = pytest.mark.usefixtures("quiet")

GUARANTEE = "privbo:guarantee"
SECRET = float(RECORDS[0])


def another_worker(study, sampler=None):
    """The same study, loaded by somebody who knows nothing of privacy."""
    sampler = RandomSampler(seed=0) if sampler is None else sampler
    return optuna.load_study(
        study_name=study.study_name, storage=storage_of(study), sampler=sampler
    )


def raw_mean(trial):
    return float(squares(trial).mean())


EVERY_SYSTEM = pytest.mark.parametrize("make", ON_STUDIES.values(), ids=ON_STUDIES)


def rewards():
    hosted = ON_STUDIES["any sampler, local"](mechanism="laplace")
    return hosted.private(hosted.objective)


# Records ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [lambda y: y + 1e-9, lambda _: math.inf])
@EVERY_SYSTEM
def test_a_value_changed_on_its_way_is_found(make, change):
    hosted = make()
    private, study = hosted.begun(1)
    trial = study.ask()
    value = private(trial)
    with pytest.warns(PrivacyWarning) if hasattr(hosted.sampler, "private") else nullcontext():
        study.tell(trial, change(value))
    assert not hosted.owner(private).guarantee(study).protected
    assert study.user_attrs[GUARANTEE].startswith("NOT PROTECTED")


def test_raw_values_are_noticed_by_an_objective_under_another_sampler():
    """Then no hook of the private sampler runs."""
    sampler, study = begun_study()
    worker = another_worker(study)
    worker.optimize(raw_mean, n_trials=1)
    worker.optimize(sampler.private(squares), n_trials=1)
    assert study.user_attrs[GUARANTEE].startswith("NOT PROTECTED")


def test_what_a_failing_vault_did_not_take_is_found_again(monkeypatch):
    sampler, study = begun_study()
    another_worker(study).optimize(raw_mean, n_trials=1)
    with monkeypatch.context() as patch:
        patch.setattr(Run, "mark_unprotected", lambda *_: hostile.throw(VaultError("locked")))
        with pytest.raises(VaultError, match="locked"):
            sampler.guarantee(study)
    assert not sampler.guarantee(study).protected


def _added(state, **more):
    def add(study):
        trial = create_trial(
            state=state, params={"x": 0.5}, distributions={"x": FloatDistribution(0, 1)}, **more
        )
        study.add_trial(trial)

    return add


def _pruned_by_others(study):
    def objective(trial):
        trial.report(raw_mean(trial), 0)
        raise optuna.TrialPruned

    another_worker(study).optimize(objective, n_trials=1)


def _failed_by_others(study):
    def objective(trial):
        trial.set_user_attr("mean", raw_mean(trial))
        raise KeyError

    another_worker(study).optimize(objective, n_trials=1, catch=(KeyError,))


STRAY = {
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


def records_begun():
    sampler, study = begun_study()
    return sampler.private(squares), sampler, study


def rewards_begun():
    private = rewards()
    return private, private, optuna.create_study(sampler=RandomSampler(seed=0))


@pytest.mark.parametrize("of", [records_begun, rewards_begun])
@pytest.mark.parametrize("stray", STRAY.values(), ids=STRAY)
def test_whatever_else_a_trial_holds_is_a_reason(stray, of):
    private, owner, study = of()
    study.optimize(private, n_trials=1)
    assert owner.guarantee(study).protected
    stray(study)
    warned = pytest.warns(PrivacyWarning, match="the study holds")
    with warned if of is records_begun else nullcontext():
        study.optimize(private, n_trials=1)
    assert study.user_attrs[GUARANTEE].startswith("NOT PROTECTED")
    guarantee = owner.guarantee(study)
    assert not guarantee.protected
    assert f"{SECRET:.6f}"[:7] not in guarantee.details()


def test_what_was_declared_public_stays_public_in_a_pruned_trial():
    sampler, study = begun_study()

    def objective(trial):
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


def test_every_failed_trial_of_the_study_is_counted():
    sampler, study = begun_study()
    study.optimize(sampler.private(squares), n_trials=1)
    for state in (TrialState.FAIL, TrialState.FAIL, TrialState.PRUNED):
        _added(state)(study)
    guarantee = sampler.guarantee(study)
    assert guarantee.protected
    assert any(note.startswith("3 trial(s) failed or were pruned") for note in guarantee.notes)


def test_trials_are_looked_at_once(monkeypatch):
    """A run costs no more for having claims that are checked before they are written."""
    sampler, study = begun_study()
    study.optimize(sampler.private(squares), n_trials=3)
    monkeypatch.setattr(Session, "published", lambda *_: pytest.fail("reads all releases"))
    monkeypatch.setattr(Run, "declared_public", lambda *_: pytest.fail("reads declarations"))
    study.optimize(sampler.private(squares), n_trials=2)
    assert sampler.guarantee(study).protected
    assert looked_at(sampler, study) == set(range(5))


# Errors of others -------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [VaultError("full"), UtilityWarning("drowned")], ids=repr)
def test_the_engine_s_own_errors_keep_their_words(error, monkeypatch):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr(Session, "tell", fails)
    sampler, study = begun_study()
    with pytest.raises(type(error), match=str(error)) as raised:
        study.optimize(sampler.private(squares), n_trials=1)
    assert raised.value is not error


# Attributes of the plugin's own -----------------------------------------------------------------

OWN_NAMES = ["privbo:play", "privbo:role", "privbo:public", "privbo:agent", "privbo:epoch"]


@pytest.mark.filterwarnings("ignore::privbo_plugins.errors.PrivacyWarning")
@pytest.mark.parametrize("state", [TrialState.COMPLETE, TrialState.FAIL])
@pytest.mark.parametrize(
    ("name", "value"),
    list(zip(OWN_NAMES, ([SECRET, 0.5], SECRET, f"{SECRET}", SECRET, [SECRET]), strict=True)),
)
@EVERY_SYSTEM
def test_a_name_of_the_plugin_s_own_excuses_no_other_contents(make, name, value, state):
    hosted = make()
    private, study = hosted.begun(2)
    owner = hosted.owner(private)
    assert owner.guarantee(study).protected
    trial = study.ask()
    released = private(trial) if state == TrialState.COMPLETE else None
    trial.set_user_attr(name, value)
    study.tell(trial, released, state=state)
    guarantee = owner.guarantee(study)
    assert not guarantee.protected
    assert any("not declared public" in reason for reason in guarantee.reasons)
    assert f"{SECRET:.6f}"[:7] not in guarantee.details()


@pytest.mark.parametrize(
    "system_attrs",
    [
        {"privbo:epoch": SECRET},
        {"privbo:row": [SECRET]},
        {"privbo:draw": [SECRET, 0, 0]},
        {"privbo:claim": [1, 2, 3, 4]},
        {"privbo:duets": {"settings": "a", "space": [SECRET], "key": 1}},
        {"privbo:notes": 1},
    ],
    ids=lambda attrs: next(iter(attrs)),
)
@EVERY_SYSTEM
def test_system_attributes_of_the_plugin_s_own_have_its_form(make, system_attrs):
    hosted = make()
    private, study = hosted.begun(1)
    owner = hosted.owner(private)
    _added(TrialState.FAIL, system_attrs={"privbo:epoch": 3, "privbo:draw": [0, 1, 2]})(study)
    assert owner.guarantee(study).protected
    _added(TrialState.FAIL, system_attrs=system_attrs)(study)
    assert not owner.guarantee(study).protected


@pytest.mark.filterwarnings("ignore::privbo_plugins.errors.PrivacyWarning")
def test_a_role_is_that_of_the_trial(tmp_path):
    vault = f"sqlite:///{tmp_path}/vault.db"
    sampler, study = begun_study(4, vault=vault)
    roles = [trial.user_attrs["privbo:role"] for trial in study.trials]
    fresh = make_sampler(vault=vault)  # only the vault knows the roles then
    assert fresh.guarantee(study).protected
    trial = study.ask()
    released = sampler.private(squares)(trial)
    trial.set_user_attr("privbo:role", roles[0])
    study.tell(trial, released)
    assert trial.number == 4
    assert not sampler.guarantee(study).protected


def test_the_marker_of_a_release_has_nothing_else_in_it():
    for more in ({"raw": SECRET}, {"release": [SECRET]}, {"mechanism": f"{SECRET}"}):
        private, study = rewards(), optuna.create_study()
        study.optimize(private, n_trials=1)
        evaluation = dict(study.trials[0].user_attrs["privbo:play"])
        _added(TrialState.FAIL, user_attrs={"privbo:play": evaluation | more})(study)
        guarantee = private.guarantee(study)
        assert not guarantee.protected
        assert (
            "trials hold data beside the reward that was not declared public" in guarantee.reasons
        )


@pytest.mark.parametrize(
    "trial", [0, 7], ids=["of a trial that has one", "of a trial that failed"]
)
def test_a_marker_shows_what_the_ledger_has_released(trial, tmp_path):
    private = ldp_objective(
        lambda t: t.suggest_float("x", 0, 1),
        epsilon=1.0,
        value_range=(0, 1),
        vault=f"sqlite:///{tmp_path}/vault.db",
    )
    study = optuna.create_study()
    study.optimize(private, n_trials=2)
    evaluation = dict(study.trials[0].user_attrs["privbo:play"])
    again = {"user_attrs": {"privbo:play": evaluation}, "system_attrs": {"failed_trial": 0}}
    _added(TrialState.FAIL, **again)(study)
    assert private.guarantee(study).protected
    forged = {"privbo:play": evaluation | {"release": SECRET}}
    _added(TrialState.FAIL, user_attrs=forged, system_attrs={"failed_trial": trial})(study)
    guarantee = private.guarantee(study)
    assert guarantee.reasons == ("trials remember releases that their ledger does not hold",)


# What one declaration covers --------------------------------------------------------------------

RIDERS = {
    "report": (
        lambda guarded: guarded.report(1.0, 1, public=True),
        lambda trial: trial.report(SECRET, 2),
    ),
    "set_user_attr": (
        lambda guarded: guarded.set_user_attr("a", 1, public=True),
        lambda trial: trial.set_user_attr("b", SECRET),
    ),
    "set_constraint": (
        lambda guarded: guarded.set_constraint("a", 1, public=True),
        lambda trial: trial.set_constraint("b", SECRET),
    ),
}
"""To an operation, one use that is vouched for, and one that was not declared public."""


@pytest.mark.parametrize("riding", [False, True], ids=["alone", "with another"])
@pytest.mark.parametrize("of", ["records", "a reward"])
@pytest.mark.parametrize("operation", RIDERS)
def test_a_declaration_covers_one_step_or_attribute_of_one_trial(operation, of, riding):
    declared, raw = RIDERS[operation]
    if of == "records":
        owner, study = begun_study()
        study.optimize(owner.private(squares), n_trials=1)
        trial = study.ask()
        declared(owner.guarded(trial))
        if riding:
            raw(trial)
        study.tell(trial, state=TrialState.FAIL)
        note = f"the caller declared values given to trial.{operation} public"
    else:
        owner, study = ldp_objective(
            lambda t: declared(t) or t.suggest_float("x", 0, 1), epsilon=1.0, value_range=(0, 1)
        ), optuna.create_study()  # fmt: skip
        study.optimize(lambda t: (raw(t) if riding else None) or float(owner(t)), n_trials=1)
        note = f"the objective declared what it gave to trial.{operation} public"
    guarantee = owner.guarantee(study)
    assert guarantee.protected is not riding
    if of == "records":
        expected = (
            (f"the study holds {operation} data that was not declared public",) if riding else ()
        )
        assert guarantee.reasons == expected
    assert [text for text in guarantee.notes if "declared" in text] == [note]


# Names ------------------------------------------------------------------------------------------


class Called(str):
    def __repr__(self):
        return f"Jane {SECRET}"


NAMES = {
    "array": RECORDS[:3], "list": [SECRET], "number": SECRET, "text": Called("x"),
    "long": f"{SECRET}" * 20, "type": type(f"Jane{SECRET}", (), {})(),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
@EVERY_SYSTEM
def test_what_is_passed_in_the_place_of_a_name_is_not_quoted(make, name):
    def objective(trial):
        x = trial.suggest_float("x", 0, 1)
        trial.suggest_float(name, 1.0, 0.0)
        return x

    study = (hosted := make()).study()
    private = hosted.private(objective)
    with pytest.raises(ValueError, match="was refused") as raised:
        study.optimize(private, n_trials=1)
    assert "Jane" not in str(raised.value)
    assert str(SECRET)[:6] not in str(raised.value)
    assert "trial.suggest_float(<" in str(raised.value) or type(name) is Called
    assert list(study.trials[0].params) == ["x"]


# Users ------------------------------------------------------------------------------------------


def _asked_elsewhere(tmp_path):
    """A study with one evaluation of a user who had four in another study of the vault."""

    def made(name, n_trials):
        url = f"sqlite:///{tmp_path}/vault.db"
        sampler = LDPGPUCBSampler(1.0, value_range=(0, 1), seed=0, vault=url)
        private = sampler.private(lambda t: t.suggest_float("x", 0, 1), user_id="jane")
        study = optuna.create_study(study_name=name, sampler=sampler)
        study.optimize(private, n_trials=n_trials)
        return sampler, private, study

    made("first", 4)
    return made("second", 1)


def test_a_copy_of_a_study_is_said_to_cost_no_less_than_the_vault_knows(tmp_path):
    """It is a run of its own, whose first evaluation the ledger has under another one."""
    sampler, private, study = _asked_elsewhere(tmp_path)
    to = optuna.storages.InMemoryStorage()
    optuna.copy_study(
        from_study_name="second", from_storage=storage_of(study), to_storage=to,
        to_study_name="copy",
    )  # fmt: skip
    copy = optuna.load_study(study_name="copy", storage=to)
    for owner in (private, sampler):
        guarantee = owner.guarantee(study)
        assert guarantee.protected
        assert "had 5 evaluations: epsilon = 5.00" in guarantee.details()
        assert owner.guarantee(copy).most_evaluations >= 5
        assert owner.guarantee(copy).epsilon >= 5.0


def _by_sampler(**vault):
    return LDPGPUCBSampler(1.0, value_range=(0, 1), seed=0, **vault)


def _by_objective(**vault):
    return ldp_objective(lambda _: 0.0, epsilon=1.0, value_range=(0, 1), **vault)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["in memory", "in another file"])
@pytest.mark.parametrize("made", [_by_sampler, _by_objective])
def test_without_the_ledger_nothing_is_claimed_of_how_often_a_user_was_asked(
    made, elsewhere, tmp_path
):
    """One rule for whoever tells a guarantee: four of the five evaluations no study shows."""
    _, private, study = _asked_elsewhere(tmp_path)
    assert private.guarantee(study).most_evaluations == 5
    stored = study.user_attrs[GUARANTEE]
    other = made(vault=f"sqlite:///{tmp_path}/other.db") if elsewhere else made()
    guarantee = other.guarantee(study)
    assert guarantee.protected
    assert guarantee.epsilon_evaluation == 1.0
    assert guarantee.epsilon == guarantee.most_evaluations == math.inf
    assert guarantee.best_guess == 1.0
    assert guarantee.spending()["spent"] == guarantee.to_dict()["most_evaluations"] == "inf"
    assert any("only their ledger knows" in note for note in guarantee.notes)
    assert study.user_attrs[GUARANTEE] == stored
    study.add_trial(create_trial(value=SECRET))
    assert not other.guarantee(study).protected
    assert study.user_attrs[GUARANTEE].startswith("NOT PROTECTED")


INVENTED = {
    "privbo:head": [3, "0" * 64],
    "privbo:head:anything": [3, "0" * 64],
    "privbo:head:0123abcd:more": [3, "0" * 64],
    "privbo:head:0123abcd": [SECRET, "0" * 64],
    "privbo:head:1123abcd": [3, str(SECRET)],
    "privbo:head:2123abcd": {"n": 3},
    "privbo:place:0123abcd:0123abcd": SECRET,
    "privbo:place:1123abcd:0123abcd": "f" * 24,
    "privbo:place": "f" * 24,
    "privbo:run:0123abcd": {"run": "0" * 32, "vault": "0" * 32},
    "privbo:duets": {"agents": 2, "epochs": [SECRET]},
    "privbo:split": {"given": True, "train": 3, "valid": 4, "mean": SECRET},
    "privbo:federation": True,
    "privbo:guarantee:": "1-GDP",
    "privbo:": SECRET,
    "privbo:public": ["set_user_attr"],
}
"""Names and forms that no sampler writes into a study as these."""


def _of_rows():
    sampler = POGPUCBSampler(np.linspace(0, 1, 20)[:, None], seed=0)
    return sampler, optuna.create_study(sampler=sampler)


def _of_system(make):
    hosted = make()
    private, study = hosted.begun(1)
    return hosted.owner(private), study


STUDIES = {name: partial(_of_system, make) for name, make in ON_STUDIES.items()}
STUDIES["rows"] = _of_rows


def _only_note(owner, study):
    guarantee = owner.guarantee(study)
    (note,) = (note for note in guarantee.notes if "did not write" in note)
    assert f"{SECRET:.6f}"[:7] not in guarantee.details()
    return str(note)


@pytest.mark.parametrize("name", INVENTED)
def test_an_invented_attribute_of_the_plugins_name_is_named(name):
    owner, study = STUDIES["any sampler, local"]()
    study.set_user_attr(name, INVENTED[name])
    assert _only_note(owner, study).endswith(f"not covered: {name}")


@pytest.mark.parametrize("of", STUDIES)
def test_attributes_of_every_study_are_noted_by_name_and_those_of_trials_a_reason(of):
    owner, study = STUDIES[of]()
    notes = owner.guarantee(study).notes
    assert not any("did not write" in note for note in notes)
    study.set_user_attr("team", "vision")
    study.set_user_attr("privbo:head:anything", SECRET)
    assert _only_note(owner, study).endswith("not covered: privbo:head:anything, team")
    storage = storage_of(study)
    storage.set_study_system_attr(study._study_id, "privbo:head:0123abcd", [SECRET])
    assert "privbo:head:0123abcd" in _only_note(owner, study)
    for i in range(9):
        study.set_user_attr(f"a{i}", i)
    assert "a0, a1, a2, a3, a4 and 7 more" in _only_note(owner, study)
    if of != "rows":
        assert owner.guarantee(study).protected
        storage.set_trial_system_attr(study.ask()._trial_id, "privbo:head:0123abcd", SECRET)
        assert not owner.guarantee(study).protected


@pytest.mark.parametrize("of", STUDIES)
def test_system_attributes_that_nobody_known_writes_are_named(of):
    owner, study = STUDIES[of]()
    storage, of_study = storage_of(study), ("losses", "fixed_params")
    for name in of_study:
        storage.set_study_system_attr(study._study_id, name, [SECRET])
    held = {"terminator:cv_scores": [SECRET], "study:metric_names": [SECRET]}
    _added(TrialState.WAITING, system_attrs=held)(study)
    assert _only_note(owner, study).endswith(f": {', '.join(sorted([*of_study, *held]))}")


OF_OPTUNA = dict.fromkeys(
    "grid_id failed_trial NSGAIISampler:generation x_for_tell".split(), "Jane"
)
OF_OPTUNA |= {
    "retry_history": ["Jane"], "search_space": ["Jane"], "mlflow_run_id": "Jane",
    "completed_rung_0": SECRET, "gp:relative_params:0": "Jane", "cma:optimizer:0": "Jane",
}  # fmt: skip
OF_DASHBOARD = {"note_ver": 7, "7:note_ver": True, "plot_data:privbo-Jane:0": ""}
OF_STUDIES = {"study:metric_names": SECRET, "NSGAIISampler:parent:1": "Jane"}
OF_STUDIES |= {f"dashboard:{name}": value for name, value in OF_DASHBOARD.items()}


@pytest.mark.parametrize("name", [*OF_OPTUNA, *OF_STUDIES])
def test_what_optuna_would_not_write_under_its_own_names_is_named(name):
    owner, study = STUDIES["any sampler, local"]()
    if name in OF_STUDIES:
        storage_of(study).set_study_system_attr(study._study_id, name, OF_STUDIES[name])
    else:
        _added(TrialState.WAITING, system_attrs={name: OF_OPTUNA[name]})(study)
    assert name in _only_note(owner, study)


def test_values_of_no_parameter_under_optunas_names_are_named():
    owner, study = STUDIES["any sampler, local"]()
    known = next(iter(study.trials[0].params))
    held = {"search_space": {"Jane": [0.5], known: [SECRET + 99]}}
    held |= {
        "tpe:relative_params:0": f'{{"{known}": ',
        "tpe:relative_params:1": f"{SECRET + 99}}}",
    }
    _added(TrialState.WAITING, system_attrs=held)(study)
    named = f"relative_params({known}), search_space(Jane), search_space({known})"
    assert _only_note(owner, study).endswith(f"not covered: {named}")


@pytest.mark.parametrize("state", [TrialState.WAITING, TrialState.FAIL], ids=["waits", "failed"])
@EVERY_SYSTEM
def test_what_is_enqueued_beside_the_space_is_named(make, state):
    hosted = make()
    private, study = hosted.begun(1)
    known = next(iter(study.trials[0].params))
    study.enqueue_trial(study.trials[0].params)
    assert not any("did not write" in n for n in hosted.owner(private).guarantee(study).notes)
    for params in ({"z": SECRET}, {known: 99 + SECRET}, {known: [SECRET]}, [SECRET]):
        study.add_trial(create_trial(state=state, system_attrs={"fixed_params": params}))
    note = _only_note(hosted.owner(private), study)
    assert note.endswith(f": fixed_params, fixed_params({known}), fixed_params(z)")


@EVERY_SYSTEM
def test_what_samplers_write_into_a_study_on_disk_is_their_own(make, tmp_path):
    """Heads, places, summaries and files of every system have the forms that are known."""
    hosted = make(vault=f"sqlite:///{tmp_path}/vault.db")
    private, study = hosted.begun(3)
    assert [name for name in study.user_attrs if name.startswith("privbo:head:")]
    notes = hosted.owner(private).guarantee(study).notes
    assert not [note for note in notes if "did not write" in note]


class Foreign(VaultError):
    """Made of other arguments than a text, which are data."""

    def __init__(self, record, name):
        super().__init__(f"{name}: {record}")
        self.record = record


class Talking(ValueError):
    def __str__(self):
        return f"Jane {SECRET}"


ERRORS = [
    Foreign(SECRET, "Jane"),
    Talking(),
    UnicodeDecodeError("utf-8", b"Jane", 0, 1, f"{SECRET}"),
    type(f"Jane{SECRET}", (PrivacyError,), {})("Jane"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__[:8])
def test_errors_of_other_classes_while_suggesting_are_not_quoted(error):
    sampler, study = begun_study()
    study.optimize(sampler.private(squares), n_trials=2)

    def fails(*_, **__):
        raise error

    study.sampler = RandomSampler(seed=0)
    study.sampler.sample_independent = fails
    with pytest.raises(ValueError, match="was refused") as raised:
        study.optimize(sampler.private(squares), n_trials=1)
    assert "Jane" not in str(raised.value)


def test_attributes_with_long_names_are_declared_public_by_name():
    sampler, study = begun_study()
    study.optimize(sampler.private(squares), n_trials=1)
    trial = study.ask()
    sampler.guarded(trial).set_user_attr("a" * 600, 1, public=True)
    study.tell(trial, state=TrialState.FAIL)
    assert sampler.guarantee(study).protected
    _added(TrialState.FAIL, user_attrs={"a" * 601: SECRET})(study)
    assert not sampler.guarantee(study).protected
