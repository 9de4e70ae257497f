"""A warning points at the line of the user that led to it, through us and through the host."""

import ast
import linecache
import os
import warnings
from pathlib import Path

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState
from ray import tune
from sklearn.linear_model import LogisticRegression

import privbo_plugins
from optuna_samplers import (
    DPFTSDESampler,
    DPGIBOSampler,
    FederatedServer,
    FederationConfig,
    LDPGPUCBSampler,
    private_objective,
)
from privbo_plugins import Curator
from privbo_plugins.errors import PrivacyWarning, UtilityWarning
from privbo_plugins.store.vault import open_vault
from raytune_searchers import DPFTSDESearch, DPGIBOSearch, LDPGPUCBSearch
from sklearn_search import PrivateSearch
from tests.contracts.optuna_subjects import N_RECORDS, Ground, Records, Table
from tests.contracts.test_claims_cut_off import ALL
from tests.drivers import ANY, EVERYWHERE, begin

ROOT = Path(privbo_plugins.__file__).parents[1]
PACKAGES = ("privbo_plugins", "optuna_samplers", "raytune_searchers", "sklearn_search")
SPACE = {"x": optuna.distributions.FloatDistribution(0, 1)}


def x_of(trial):
    return trial.suggest_float("x", 0, 1)


def lines_told(act):
    """Files and texts of the lines that warnings of ours point at."""
    with warnings.catch_warnings(record=True, action="always") as caught:
        act()
    found = {
        (w.filename, linecache.getline(w.filename, w.lineno).strip())
        for w in caught
        if w.category.__module__ == "privbo_plugins.errors"
    }
    assert found, "nothing was warned of"
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_all_warnings_are_issued_by_one_function(package):
    issued = [
        path.name
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf8")))
        if isinstance(node, ast.Attribute) and node.attr in ("warn", "warn_explicit")
        if isinstance(node.value, ast.Name) and node.value.id == "warnings"
    ]
    assert issued == ["errors.py"] * (package == "privbo_plugins")


def loop(n_jobs=1):
    study = optuna.create_study(sampler=DPGIBOSampler(1, seed=0))
    study.optimize(x_of, n_trials=3, n_jobs=n_jobs)


def few_records():
    sampler = DPGIBOSampler(1, n_trials=12, n_starts=2, seed=0)
    study = optuna.create_study(sampler=sampler)
    private = sampler.private(lambda trial: np.full(5, x_of(trial)))
    study.optimize(private)


def many_samples():
    tune = pytest.importorskip("ray.tune")
    search = DPGIBOSearch(1, metric="loss", mode="min")
    search.set_search_properties(None, None, {"x": tune.uniform(0, 1)}, num_samples=2)
    search._planned(search._ready())


def planned_by(make):
    return lambda delta: make(epsilon=1.0, delta=delta).plan(SPACE, 10**4)


def planned_on_ray(delta):
    tune = pytest.importorskip("ray.tune")
    search = DPGIBOSearch(epsilon=1.0, delta=delta, metric="loss", mode="min")
    search.plan({"x": tune.uniform(0, 1)}, 10**4)


def searched(delta):
    X = np.random.default_rng(0).normal(size=(10**4, 1))
    y = (X[:, 0] > 0).astype(int)
    search = PrivateSearch(LogisticRegression(), {"C": [0.1, 1.0]}, epsilon=8.0, delta=delta,
                           n_iter=2, random_state=0)  # fmt: skip
    search.fit(X[:99], y[:99], X_valid=X.copy(), y_valid=y.copy())
    assert ("is large for" in str(search.guarantee_)) == (delta > 1e-5)


def first_trial(delta):
    sampler = DPGIBOSampler(epsilon=8.0, delta=delta, seed=0)
    study = optuna.create_study(sampler=sampler)
    losses = np.linspace(0, 1, 10**4)
    study.optimize(sampler.private(lambda trial: abs(losses - x_of(trial))), n_trials=2)
    told = str(sampler.guarantee(study)), study.user_attrs["privbo:guarantee"]
    assert all(("is large for" in text) == (delta > 1e-5) for text in told)


def gaussian_rewards(make):
    return lambda delta: make(1.0, bound=1, mechanism="gaussian", delta=delta).plan(10**4)


MEETINGS = {
    "a plan": planned_by(DPGIBOSampler),
    "a plan on Ray": planned_on_ray,
    "a plan for scikit-learn": lambda delta: PrivateSearch(
        LogisticRegression(), {"C": [0.1, 1.0]}, epsilon=8.0, delta=delta, n_iter=2
    ).plan(n_records=10**4),
    "a first trial": first_trial,
    "a fit": searched,
    "a federation": lambda delta: FederationConfig(n_agents=10**4, epsilon=1.0, delta=delta),
    "a table": lambda delta: Curator(
        np.zeros((10**4, 1)), epsilon=1.0, delta=delta, bounds=[(0, 1)]
    ).release(),
    "rewards": gaussian_rewards(LDPGPUCBSampler),
    "rewards on Ray": gaussian_rewards(LDPGPUCBSearch),
}


@pytest.mark.parametrize("where", MEETINGS)
@pytest.mark.parametrize("delta", [1.01e-5, 1e-5], ids=["large", "not large"])
def test_a_delta_above_a_tenth_over_n_is_warned_of_wherever_the_two_meet(where, delta):
    with warnings.catch_warnings(record=True, action="always") as caught:
        MEETINGS[where](delta)
    told = [str(w.message) for w in caught if w.category is PrivacyWarning]
    large = [text for text in told if text.startswith("delta = 1.01e-05 is large for 10000 ")]
    assert bool(large) == (delta > 1e-5)
    assert len(told) == len(large)


@pytest.mark.parametrize(
    ("act", "line"),
    [
        (lambda: FederationConfig(n_agents=100, epsilon=1.0, delta=0.01), "FederationConfig("),
        (lambda: DPGIBOSampler(1).plan(SPACE, 5), "DPGIBOSampler(1).plan("),
        (lambda: LDPGPUCBSampler(1.0, bound=1).plan(3), "LDPGPUCBSampler(1.0, bound=1).plan("),
        (lambda: LDPGPUCBSearch(1.0, bound=1).plan(3), "LDPGPUCBSearch(1.0, bound=1).plan("),
        (loop, "study.optimize(x_of, n_trials=3, n_jobs=n_jobs)"),
        (few_records, "study.optimize(private)"),
        (many_samples, "search._planned("),
    ],
)
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_a_warning_points_at_the_users_line(act, line):
    for file, text in lines_told(act):
        assert file == __file__
        assert line in text


def test_a_vaults_file_points_at_the_line_that_opens_it(tmp_path):
    path = tmp_path / "vault.db"
    url = f"sqlite:///{path}"
    open_vault(url).close()
    os.chmod(path, 0o644)
    for opens in (
        lambda: open_vault(url),
        lambda: DPGIBOSampler(1, vault=url),
        lambda: private_objective(x_of, mu=1, n_trials=9, vault=url),
    ):
        ((file, text),) = lines_told(opens)
        assert file == __file__
        assert text.startswith("lambda: ")


def test_in_a_hosts_thread_no_line_of_ours_or_of_the_host_is_taken_for_the_users():
    ((file, _),) = lines_told(lambda: loop(n_jobs=2))
    assert not {*PACKAGES, "optuna"} & {*Path(file).relative_to("/").parts}


def under_errors(act):
    """Runs a step with this package's warnings as errors: what was raised, and what was shown."""
    raised = []
    with warnings.catch_warnings(record=True) as shown:
        for kind in (PrivacyWarning, UtilityWarning):
            warnings.simplefilter("error", kind)
        try:
            act()
        except (PrivacyWarning, UtilityWarning) as error:
            raised = [str(error)]
    return [*raised, *(str(warning.message) for warning in shown)]


def stranger(study, space):
    params = {name: distribution.low for name, distribution in space.items()}
    study.add_trial(
        optuna.trial.create_trial(params=params, distributions=dict(space), value=0.123)
    )


@pytest.mark.parametrize("name", [name for name, kind in ALL.items() if not kind.own_study])
@pytest.mark.parametrize("at", [1, 4, None])
def test_no_warning_that_is_made_an_error_loses_what_is_paid_for(name, at, tmp_path):
    """Each trial that the ledger has paid for shows its release, whatever the study holds."""
    subject = ALL[name](Ground(tmp_path))
    if not isinstance(subject, Table):  # all at an end of the range
        subject.outcome = lambda _: np.ones(N_RECORDS) if isinstance(subject, Records) else 1.0
    study = optuna.create_study(sampler=subject.sampler, direction=subject.direction)
    private, told, paid = subject.objective(), [], set()
    with warnings.catch_warnings(action="ignore"):
        study.optimize(private, n_trials=1)
    for number in range(1, subject.n_trials + 6):
        if number == at:
            stranger(study, subject.space)
        if subject.done(study):
            break
        told += under_errors(lambda: study.optimize(private, n_trials=1))
        for trial in study.get_trials(deepcopy=False):
            if trial.value != 0.123 and (released := subject.released(study, trial)):
                assert trial.state == TrialState.COMPLETE, told
                assert trial.value in released
                paid.add(trial.number)
    assert len(paid) >= (5 if at is None else 3)
    if isinstance(subject, Records):
        texts = "\n".join(told)
        assert ("the study holds values that were not released" in texts) == (at is not None)
    subject.close()


@pytest.mark.parametrize("make", ["private_objective", "DPGIBOSampler"])
def test_losses_at_an_end_of_their_range_are_told_of_once_and_no_trial_is_lost(make, monkeypatch):
    """Only releases tell of it, so the warning comes after they are paid for."""
    monkeypatch.setattr("privbo_plugins.sessions.clipping_warning._CLOSE", 9.0)  # not by chance
    losses = np.ones(900)

    def objective(trial):
        x_of(trial)
        return losses

    private, sampler = private_objective(objective, mu=5, n_trials=12), None
    if make == "DPGIBOSampler":
        sampler = DPGIBOSampler(mu=5, n_trials=20, seed=0)
        private = sampler.private(objective)
    study = optuna.create_study(sampler=sampler)
    told = under_errors(lambda: study.optimize(private, n_trials=12))
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * 12
    assert sum("an end of the range" in text for text in told) == 1


@pytest.mark.usefixtures("local_hosts")
@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("system", [
    name for name, host in EVERYWHERE if host == "ray" and name not in ("rows", "federation")
])  # fmt: skip
def test_on_ray_no_warning_that_is_made_an_error_loses_what_is_paid_for(system, plain, tmp_path):
    """Each trial shows its release, though one beside it shows what is none."""
    run, shown = begin(system, "ray", tmp_path), []
    private = lambda _: np.ones(run.system.size) if run.system.size else 1.0  # noqa: E731
    run.returned = private
    run.trials(1)
    run.loud = True
    for strange in (False, plain, False):
        beside = strange and system not in ANY
        run.returned = (lambda _: 1.0) if beside else private
        told = under_errors(lambda beside=beside: shown.extend(run.trials(1, plain=beside)))
        assert ("Nothing is protected" in "\n".join(told)) == beside
    assert len(shown) == 3
    assert None not in shown


FEDERATIONS = {
    "optuna": lambda config: DPFTSDESampler(FederatedServer(config).connect(0)),
    "ray": lambda config: DPFTSDESearch(
        config, search_space={"x": tune.uniform(0, 1)}, n_trials=2
    ),
}


@pytest.mark.parametrize("host", FEDERATIONS)
def test_a_federation_of_few_agents_is_warned_of_when_it_is_made(host):
    def texts(n_agents):
        config = FederationConfig(n_agents=n_agents, epsilon=4)
        with warnings.catch_warnings(
            record=True, action="always", category=UtilityWarning
        ) as shown:
            FEDERATIONS[host](config)
        return [str(warning.message) for warning in shown]

    (told,) = texts(3)
    assert "the longest mean that 3 agents can send" in told
    assert texts(100) == []
