"""Each cell of docs/optuna-matrix.md, run."""

import functools
import warnings

import numpy as np
import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import RandomSampler

from privbo_plugins.algorithms.po_gp_ucb import table as claims
from privbo_plugins.errors import VaultError
from privbo_plugins.privacy.accountant import compose_epsilon
from tests.contracts import optuna_matrix as matrix
from tests.contracts import pages
from tests.contracts.optuna_subjects import SUBJECTS, Ground, Records


@pytest.fixture(scope="module", autouse=True)
def claims_are_composed_once():
    """What each table of a curator costs, which takes a second to find out, is always the same."""
    known = functools.cache(compose_epsilon)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims, "compose_epsilon", lambda events, delta: known(tuple(events), delta))
        yield


def _cells():
    return [
        pytest.param(row, system, marks=_marks(row, system), id=f"{row.name}-{system}")
        for row in matrix.ROWS
        for system in SUBJECTS
    ]


FIRST, EVERY = "DP-GIBO", ("`optimize`", "`n_jobs=4`", "`add_trial`", "`RDBStorage`, SQLite")
"""The system of which all rows are in every run, and the rows that are for all systems."""


def _marks(row, system):
    marks = [] if system == FIRST or row.name in EVERY else [pytest.mark.soak]
    return [*marks, pytest.mark.slow] if row.slow else marks


@pytest.mark.parametrize(("row", "system"), _cells())
def test_what_the_page_says_of_optuna_is_so(row, system, tmp_path, empty_study, request):
    given = matrix.Given(empty_study, lambda: request.getfixturevalue("postgres_database"))
    assert matrix.outcome(row, system, tmp_path, given) == row.outcome(system)


def test_the_page_shows_the_table_as_it_is():
    pages.check(matrix.MODULE, matrix.PAGE, matrix.table())


class Bare(Records):
    """DP-GIBO whose objective nobody has wrapped."""

    def private(self, plain):
        return lambda trial: float(np.mean(plain(trial)))


def test_a_run_that_leaks_is_no_cell_that_works(tmp_path, empty_study, monkeypatch):
    monkeypatch.setitem(SUBJECTS, Records.name, Bare)
    given = matrix.Given(empty_study, str)
    row = next(row for row in matrix.ROWS if row.name == "`MaxTrialsCallback`")
    with pytest.raises(AssertionError):
        matrix.outcome(row, Records.name, tmp_path, given)
    cell = matrix.Cell(Bare, _folder(tmp_path), given)
    with cell.evidence.recorded():
        study = cell.study()
        study.optimize(cell.subject.objective(), n_trials=2)
    cell.expects("Nothing is protected")
    with pytest.raises(AssertionError, match="mean 0"):
        cell.nothing_leaked()


def _folder(root):
    folder = root / "second"
    folder.mkdir()
    return folder


# What rows have brought to light ----------------------------------------------------------------


def test_a_model_that_tunes_itself_privately_may_be_scored_by_optunasearchcv(tmp_path):
    pytest.importorskip("optuna_integration", reason="optuna-integration is not installed")
    sklearn = pytest.importorskip("sklearn.linear_model", reason="scikit-learn is not installed")
    subject = Records(Ground(tmp_path))
    inner = optuna.create_study(sampler=subject.sampler)

    class Tuned(sklearn.Ridge):
        def fit(self, X, y):
            inner.optimize(subject.objective(), n_trials=1)
            return super().fit(X, y)

    from optuna_integration import OptunaSearchCV

    space = {"alpha": FloatDistribution(0.0, 1.0)}
    outer = optuna.create_study(direction="maximize", sampler=RandomSampler(seed=0))
    X = np.arange(24.0).reshape(12, 2)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.filterwarnings("ignore", category=ExperimentalWarning)
        OptunaSearchCV(Tuned(), space, study=outer, cv=2, n_trials=1).fit(X, X[:, 0])
    assert len(inner.trials) == 3  # two folds, and the fit to all
    assert subject.guarantee(inner).protected


def test_a_sampler_of_optunas_that_serves_one_study_only_is_named_as_a_cause(tmp_path):
    subject = SUBJECTS["ldp_objective, TPE"](Ground(tmp_path))
    private = subject.objective()
    first = optuna.create_study(sampler=subject.sampler)
    first.optimize(private, n_trials=4)
    storage = optuna.storages.InMemoryStorage()
    optuna.create_study(storage=storage)
    second = optuna.create_study(sampler=subject.sampler, storage=storage)
    with pytest.raises(ValueError, match="serve one study only, so give this study a new one"):
        second.optimize(private, n_trials=4)


@pytest.mark.slow
@pytest.mark.parametrize("system", ["DP-GIBO", "LDP GP-UCB"])
def test_a_vault_in_the_database_behind_a_proxy_is_refused(system, tmp_path, empty_study):
    pytest.importorskip("grpc", reason="grpcio is not installed (the dev extra)")
    cell = matrix.Cell(SUBJECTS[system], tmp_path, matrix.Given(empty_study, str))
    cell.ground.vault = cell.file()
    (cell.ground.shared / "study.db").chmod(0o600)
    cell.again()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=ExperimentalWarning)
        storage = matrix.proxied(cell, cell.ground.vault)
        try:
            study = cell.study(storage=storage)
            with pytest.raises(VaultError, match="lie in the same database"):
                study.optimize(cell.subject.objective(), n_trials=1)
            assert not matrix.completed(study)
        finally:
            cell.until.close()
