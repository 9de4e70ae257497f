"""What is refused, in which words, and that nothing is lost by it."""

import logging

import numpy as np
import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState

from privbo_plugins.errors import VaultError
from privbo_plugins.sessions.records import Session
from tests.inside import n_compared, read_only, session_of
from tests.leaks import Scanner, exception_leaks
from tests.optuna_samplers.runs import RECORDS, begun_study, make_sampler, squares

SECRET = float(RECORDS[0])

# Vaults ---------------------------------------------------------------------------------------


def test_a_vault_that_becomes_read_only_loses_nothing(tmp_path):
    """A transaction that cannot be written keeps nothing, and the trial can be told later."""
    scanner = Scanner()
    sampler, study = begun_study(2, vault=f"sqlite:///{tmp_path}/vault.db")
    charges = session_of(sampler, study).ledger()
    trial = study.ask()
    trial.suggest_float("x", 0, 1)
    losses = np.random.default_rng().uniform(0.11, 0.99, len(RECORDS))
    scanner.add_vector("losses", losses)
    with read_only(sampler), pytest.raises(VaultError, match="Nothing of it was kept") as raised:
        sampler.tell_private(trial, losses)
    assert exception_leaks(raised.value, scanner) == []
    assert session_of(sampler, study).ledger() == charges
    assert study.trials[2].state == TrialState.RUNNING
    sampler.tell_private(trial, losses)
    study.optimize(sampler.private(squares))
    assert sampler.finished(study)
    assert sampler.guarantee(study).protected


SHARED = ["sqlite:///{}", "sqlite:///{0}?timeout=5", "sqlite:///file:{}?uri=true", "a hard link"]


@pytest.mark.parametrize("spelling", SHARED)
def test_nothing_hides_that_vault_and_study_share_a_database(spelling, tmp_path):
    path, vault = tmp_path / "study.db", tmp_path / "study.db"
    if spelling == "a hard link":
        spelling, vault = SHARED[0], tmp_path / "vault.db"
    sampler = make_sampler(vault=f"sqlite:///{vault}")
    if vault != path:
        path.hardlink_to(vault)
    storage = optuna.storages.RDBStorage(spelling.format(path))
    try:
        study = optuna.create_study(storage=storage, sampler=sampler)
        with pytest.raises(VaultError, match="same database"):
            study.optimize(sampler.private(squares), n_trials=1)
    finally:
        storage.engine.dispose()


# Spaces ---------------------------------------------------------------------------------------


CHANGES = {
    "another range": lambda t: (t.suggest_float("x", 0.0, 2.0) - RECORDS) ** 2,
    "another scale": lambda t: (t.suggest_float("x", 1e-3, 1.0, log=True) - RECORDS) ** 2,
    "a step": lambda t: (t.suggest_float("x", 0.0, 1.0, step=0.5) - RECORDS) ** 2,
    "one more": lambda t: squares(t) + 0.1 * t.suggest_float("y", 0.0, 1.0),
    "another name": lambda t: (t.suggest_float("z", 0.0, 1.0) - RECORDS) ** 2,
    "a choice more": lambda t: squares(t) + 0.1 * (t.suggest_categorical("c", "ab") == "a"),
}


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_space_that_changes_is_refused(change, declared):
    space = {"x": FloatDistribution(0, 1)} if declared else None
    sampler, study = begun_study(3, search_space=space)
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
    session = session_of(sampler, study)
    compared = n_compared(session.releases())
    assert len(session.ledger()) == 2 + 2 * 3 + compared + (compared > 0)
    assert sampler.guarantee(study).protected


def test_errors_while_suggesting_say_what_is_wrong(monkeypatch):
    """They name public facts only: neither Optuna's rule nor the vault's state is withheld."""
    sampler, study = begun_study(2)

    def refuses(session, trial):
        raise VaultError("The vault refused an operation (disk full). Nothing of it was kept.")

    with monkeypatch.context() as patch:
        patch.setattr(Session, "ask", refuses)
        with pytest.raises(VaultError, match="disk full"):
            study.optimize(sampler.private(squares), n_trials=1)
    study.optimize(sampler.private(squares))
    assert sampler.finished(study)


def test_purging_in_the_middle_of_a_batch_does_not_end_the_run():
    sampler, study = begun_study(4, batch_size=3)
    assert session_of(sampler, study).run.held_losses()
    sampler.purge(study)
    study.optimize(sampler.private(squares), n_trials=30)
    assert sampler.finished(study)
    assert sampler.guarantee(study).protected


def test_bounds_of_a_refused_suggestion_are_not_logged(caplog):
    sampler, study = begun_study()

    def objective(trial):
        trial.suggest_float("best", 2.0, SECRET)
        return squares(trial)

    optuna.logging.enable_propagation()
    for name in [name for name in logging.root.manager.loggerDict if name.startswith("optuna")]:
        logging.getLogger(name).disabled = False  # a migration's own configuration disables all
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
