"""What is refused, in which words, and that nothing is lost by it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState

from optuna_samplers import DPGIBOSampler
from privbo_plugins.errors import PrivacyWarning, VaultError
from privbo_plugins.sessions.records import Session
from tests.inside import read_only, session_of
from tests.leaks import Scanner, exception_leaks
from tests.optuna_samplers.runs import RECORDS, make_sampler, squares

SECRET = float(RECORDS[0])

# Settings -------------------------------------------------------------------------------------


# Vaults ---------------------------------------------------------------------------------------


def test_a_vault_that_becomes_read_only_loses_nothing(tmp_path: Path) -> None:
    """A transaction that cannot be written keeps nothing, and the trial can be told later."""
    scanner = Scanner()
    sampler = make_sampler(vault=f"sqlite:///{tmp_path}/vault.db")
    study = optuna.create_study(sampler=sampler)
    study.optimize(sampler.private(squares), n_trials=2)
    charges = session_of(sampler, study).ledger()
    trial = study.ask()
    trial.suggest_float("x", 0, 1)
    losses = np.random.default_rng().uniform(0.11, 0.99, len(RECORDS))
    scanner.add_vector("losses", losses)
    with (
        read_only(sampler),
        pytest.raises(VaultError, match="Nothing of it was kept") as raised,
    ):
        sampler.tell_private(trial, losses)
    assert exception_leaks(raised.value, scanner) == []
    assert session_of(sampler, study).ledger() == charges
    assert study.trials[2].state == TrialState.RUNNING
    sampler.tell_private(trial, losses)
    study.optimize(sampler.private(squares))
    assert sampler.finished(study)
    assert sampler.guarantee(study).protected


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
    sampler = make_sampler(vault=f"sqlite:///{tmp_path}/vault.db")
    (tmp_path / "study.db").hardlink_to(tmp_path / "vault.db")
    storage = optuna.storages.RDBStorage(f"sqlite:///{tmp_path}/study.db")
    refuses_to_share(sampler, storage)


# Losses ---------------------------------------------------------------------------------------


# Spaces ---------------------------------------------------------------------------------------


def test_an_objective_that_suggests_nothing() -> None:
    sampler = make_sampler()
    study = optuna.create_study(sampler=sampler)
    for bad in (lambda _: RECORDS, lambda t: RECORDS + t.suggest_float("x", 0.5, 0.5)):
        with pytest.raises(ValueError, match="suggested no parameter that varies"):
            study.optimize(sampler.private(bad), n_trials=1)
    assert session_of(sampler, study).ledger() == []
    with pytest.warns(PrivacyWarning, match="single value"):  # the second one left a constant
        study.optimize(sampler.private(squares))
    assert sampler.finished(study)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "another range": lambda t: (t.suggest_float("x", 0.0, 2.0) - RECORDS) ** 2,
    "another scale": lambda t: (t.suggest_float("x", 1e-3, 1.0, log=True) - RECORDS) ** 2,
    "a step": lambda t: (t.suggest_float("x", 0.0, 1.0, step=0.5) - RECORDS) ** 2,
    "one more": lambda t: squares(t) + 0.1 * t.suggest_float("y", 0.0, 1.0),
    "another name": lambda t: (t.suggest_float("z", 0.0, 1.0) - RECORDS) ** 2,
    "a choice more": lambda t: squares(t) + 0.1 * (t.suggest_categorical("c", "ab") == "a"),
}


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_space_that_changes_is_refused(change: Callable[[Any], Any], declared: bool) -> None:
    space = {"x": FloatDistribution(0, 1)} if declared else None
    sampler = make_sampler(search_space=space)
    study = optuna.create_study(sampler=sampler)
    study.optimize(sampler.private(squares), n_trials=3)
    charges = session_of(sampler, study).ledger()
    for _ in range(2):
        with pytest.raises(
            ValueError,
            match=r"search space of a private study.*start a new study|suggest_float.*refused",
        ):
            study.optimize(sampler.private(change), n_trials=1)
    assert study.trials[-1].state == TrialState.FAIL
    assert session_of(sampler, study).ledger() == charges
    study.optimize(sampler.private(squares))
    assert sampler.finished(study)
    assert len(session_of(sampler, study).ledger()) == 9
    assert sampler.guarantee(study).protected


def test_a_parameter_that_goes_missing_is_refused() -> None:
    def both(trial: Any) -> np.ndarray:
        return squares(trial) + 0.1 * trial.suggest_float("y", 0.0, 1.0)

    sampler = make_sampler()
    study = optuna.create_study(sampler=sampler)
    study.optimize(sampler.private(both), n_trials=3)
    with pytest.raises(ValueError, match=r"over x, y.*another one over x"):
        study.optimize(sampler.private(squares), n_trials=1)
    study.optimize(sampler.private(both))
    assert sampler.finished(study)


def test_errors_while_suggesting_say_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """They name public facts only: neither Optuna's rule nor the vault's state is withheld."""
    sampler = make_sampler()
    study = optuna.create_study(sampler=sampler)
    study.optimize(sampler.private(squares), n_trials=2)

    def refuses(session: Session, trial: str) -> Any:
        raise VaultError("The vault refused an operation (disk full). Nothing of it was kept.")

    with monkeypatch.context() as patch:
        patch.setattr(Session, "ask", refuses)
        with pytest.raises(VaultError, match="disk full"):
            study.optimize(sampler.private(squares), n_trials=1)
    study.optimize(sampler.private(squares))
    assert sampler.finished(study)


def test_too_few_trials_for_a_step() -> None:
    sampler = DPGIBOSampler(1.0, n_trials=4, n_starts=2)
    study = optuna.create_study(sampler=sampler)
    with pytest.raises(ValueError, match="at least 5 are needed"):
        study.optimize(sampler.private(squares), n_trials=1)
    assert session_of(sampler, study).ledger() == []


def test_purging_in_the_middle_of_a_batch_does_not_end_the_run() -> None:
    sampler = make_sampler(batch_size=3)
    study = optuna.create_study(sampler=sampler)
    study.optimize(sampler.private(squares), n_trials=4)
    assert session_of(sampler, study).run.held_losses()
    sampler.purge(study)
    study.optimize(sampler.private(squares), n_trials=30)
    assert sampler.finished(study)
    assert sampler.guarantee(study).protected


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
