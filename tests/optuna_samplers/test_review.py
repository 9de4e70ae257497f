"""Ways round the private channel that a hostile reader of the code would try first."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.samplers import TPESampler
from optuna.trial import TrialState
from runs import make_sampler

from privbo_plugins.errors import PrivacyWarning, VaultError
from privbo_plugins.privacy.noise import InsecureNoise, SecureNoise

RECORDS = np.random.default_rng(0).normal(0.6, 0.1, 120)
SECRET = float(RECORDS[0])


def squares(trial: Any) -> np.ndarray:
    return (trial.suggest_float("x", 0.0, 1.0) - RECORDS) ** 2


def go_on(sampler: Any, study: optuna.Study) -> Any:
    """Runs the private objective to the end and returns the guarantee."""
    study.optimize(sampler.private(squares))
    return sampler.guarantee(study)


def test_control_the_plain_private_run_is_protected() -> None:
    sampler = make_sampler()
    assert go_on(sampler, optuna.create_study(sampler=sampler)).protected


def bare_vector(trial: Any) -> Any:
    return squares(trial)


def bare_error(trial: Any) -> Any:
    raise ValueError(f"mean {squares(trial).mean()}")


def bare_attribute(trial: Any) -> Any:
    trial.set_user_attr("raw", squares(trial).tolist())
    raise ValueError


def bare_pruned(trial: Any) -> Any:
    trial.report(float(squares(trial).mean()), 0)
    raise optuna.TrialPruned


@pytest.mark.parametrize("bare", [bare_vector, bare_error, bare_attribute, bare_pruned])
def test_a_forgotten_wrapper_is_noticed_whatever_the_trial_came_to(bare: Any) -> None:
    sampler = make_sampler()
    study = optuna.create_study(sampler=sampler)
    study.optimize(sampler.private(squares), n_trials=2)
    with pytest.warns(PrivacyWarning, match="sampler.private"):
        study.optimize(bare, n_trials=1, catch=(ValueError,))
    assert study.trials[-1].state != TrialState.COMPLETE
    guarantee = go_on(sampler, study)
    assert not guarantee.protected
    assert "outside sampler.private" in str(guarantee)


def test_a_forgotten_wrapper_stops_the_study_at_once() -> None:
    sampler = make_sampler()
    study = optuna.create_study(sampler=sampler)
    with pytest.warns(PrivacyWarning, match="sampler.private"):
        study.optimize(bare_vector, n_trials=50)
    assert len(study.trials) == 1


def test_one_declaration_does_not_vouch_for_other_trials() -> None:
    def public(trial: Any) -> np.ndarray:
        trial.report(1.0, 0, public=True)
        return squares(trial)

    sampler = make_sampler()
    study = optuna.create_study(sampler=sampler)
    study.optimize(sampler.private(public), n_trials=1)
    assert sampler.guarantee(study).protected
    trial = study.ask()
    trial.report(SECRET, 0)
    sampler.tell_private(trial, squares(trial))
    assert not sampler.guarantee(study).protected


def test_attributes_of_ask_and_tell_need_a_declaration_too() -> None:
    sampler = make_sampler()
    study = optuna.create_study(sampler=sampler)
    trial = study.ask()
    sampler.guarded(trial).set_user_attr("host", "a", public=True)
    sampler.tell_private(trial, squares(trial))
    assert sampler.guarantee(study).protected
    trial = study.ask()
    trial.set_user_attr("raw", SECRET)
    sampler.tell_private(trial, squares(trial))
    assert not sampler.guarantee(study).protected


@pytest.mark.parametrize("name", ["relative_params", "constraints", "_trial_id", "storage"])
def test_live_objects_of_the_trial_are_closed(name: str) -> None:
    sampler = make_sampler()
    study = optuna.create_study(sampler=sampler)

    def objective(trial: Any) -> np.ndarray:
        getattr(trial, name)
        return squares(trial)

    with pytest.raises(RuntimeError, match="closed to a private objective"):
        study.optimize(sampler.private(objective), n_trials=1)


def test_bounds_of_a_refused_suggestion_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    sampler = make_sampler()
    study = optuna.create_study(sampler=sampler)

    def objective(trial: Any) -> np.ndarray:
        trial.suggest_float("best", 2.0, SECRET)
        return squares(trial)

    optuna.logging.enable_propagation()
    try:
        with (
            caplog.at_level(logging.DEBUG, logger="optuna"),  # other tests may have quietened it
            pytest.raises(ValueError, match=r"trial.suggest_float\('best', ...\) was refused"),
        ):
            study.optimize(sampler.private(objective), n_trials=1)
    finally:
        optuna.logging.disable_propagation()
    assert "best" in caplog.text
    assert f"{SECRET:.6f}"[:8] not in caplog.text


def refuses_to_share(sampler: Any, storage: optuna.storages.RDBStorage) -> None:
    try:
        study = optuna.create_study(storage=storage, sampler=sampler)
        with pytest.raises(VaultError, match="same database"):
            study.optimize(sampler.private(squares), n_trials=1)
    finally:
        storage.engine.dispose()


@pytest.mark.parametrize(
    "spelling", ["sqlite:///{}", "sqlite:///{0}?timeout=5", "sqlite:///file:{}?uri=true"]
)
def test_no_spelling_hides_that_vault_and_study_share_a_database(
    spelling: str, tmp_path: Path
) -> None:
    path = tmp_path / "study.db"
    sampler = make_sampler(vault=f"sqlite:///{path}")
    storage = optuna.storages.RDBStorage(spelling.format(path))
    refuses_to_share(sampler, storage)


def test_a_hard_link_does_not_hide_it_either(tmp_path: Path) -> None:
    (tmp_path / "study.db").touch(0o600)
    (tmp_path / "vault.db").hardlink_to(tmp_path / "study.db")
    sampler = make_sampler(vault=f"sqlite:///{tmp_path}/vault.db")
    storage = optuna.storages.RDBStorage(f"sqlite:///{tmp_path}/study.db")
    refuses_to_share(sampler, storage)


def test_two_vaults_that_begin_a_study_at_once_do_not_both_spend() -> None:
    one, two = make_sampler(), make_sampler()
    study = optuna.create_study(sampler=one)
    first = study.ask()  # one has begun the study ...
    remembered = study.user_attrs["privbo:run"]
    study.set_user_attr("privbo:run", None)
    study.sampler = two
    study.ask()  # ... and so has two, which did not see it
    assert study.user_attrs["privbo:run"] != remembered
    with pytest.raises(VaultError, match="same time"):
        one.tell_private(first, squares(first))
    assert one._state(study).session.ledger() == []
    assert not one._state(study).session.guarantee().protected


def test_training_is_charged_under_another_sampler_too() -> None:
    sampler = make_sampler(training_mu=0.5)
    study = optuna.create_study(sampler=TPESampler(seed=0))
    study.optimize(sampler.private(squares), n_trials=4)
    assert "4 trainings declared 0.5-GDP each compose to 1-GDP" in str(sampler.guarantee(study))
    study.sampler = sampler
    study.optimize(sampler.private(squares), n_trials=1)
    assert "5 trainings" in str(sampler.guarantee(study))


def test_an_average_in_a_list_is_refused_and_fixes_nothing() -> None:
    sampler = make_sampler()
    study = optuna.create_study(sampler=sampler)
    with pytest.raises(ValueError, match="looks like an average"):
        study.optimize(sampler.private(lambda t: [float(squares(t).mean())]), n_trials=1)
    assert go_on(sampler, study).protected


def test_odd_entries_of_an_object_array_become_a_constant() -> None:
    def objective(trial: Any) -> Any:
        values = squares(trial).astype(object)
        values[:3] = [None, 10**400, "n/a"]
        return values

    sampler = make_sampler()
    study = optuna.create_study(sampler=sampler)
    study.optimize(sampler.private(objective))
    assert all(t.state == TrialState.COMPLETE for t in study.trials)


@pytest.mark.filterwarnings("ignore::privbo_plugins.errors.PrivacyWarning")
def test_a_source_that_only_says_it_is_secure_is_not_believed() -> None:
    class Silent(SecureNoise):
        def add_gaussian(self, value: np.ndarray, scale: float) -> np.ndarray:
            return value

    sampler = make_sampler(noise=Silent())
    study = optuna.create_study(sampler=sampler)
    assert not go_on(sampler, study).protected


def test_a_plain_value_is_marked_even_if_taking_it_fails(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/vault.db"
    sampler = make_sampler(vault=url)
    study = optuna.create_study(sampler=sampler)
    study.optimize(sampler.private(squares), n_trials=1)
    again = make_sampler(vault=url)
    session = again._state(study).session
    space = sampler._state(study).session.space
    assert space is not None
    session.tell_plain("77", {"x": 0.5}, space, SECRET)
    assert not sampler.guarantee(study).protected


def test_the_guarantee_names_what_cannot_be_checked() -> None:
    sampler = make_sampler()
    study = optuna.create_study(sampler=sampler)
    text = str(go_on(sampler, study))
    assert "not the same record in every trial" in text
    assert "constants of the search space" in text


@pytest.mark.parametrize("settings", [{"mu": float("inf")}, {"noise": InsecureNoise(0)}])
def test_a_run_without_a_guarantee_says_so_at_its_first_trial(settings: dict[str, Any]) -> None:
    sampler = make_sampler(**settings)
    study = optuna.create_study(sampler=sampler)
    with pytest.warns(PrivacyWarning, match="Nothing is protected"):
        study.ask()
    assert "NOT PROTECTED" in str(sampler.guarantee(study))
