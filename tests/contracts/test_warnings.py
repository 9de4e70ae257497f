"""A warning points at the line of the user that led to it, through us and through the host."""

from __future__ import annotations

import ast
import linecache
import os
import warnings
from pathlib import Path

import numpy as np
import optuna
import pytest

import privbo_plugins
from optuna_samplers import DPGIBOSampler, FederationConfig, LDPGPUCBSampler, private_objective
from privbo_plugins.store.vault import open_vault
from raytune_searchers import DPGIBOSearch, LDPGPUCBSearch

ROOT = Path(privbo_plugins.__file__).parents[1]
PACKAGES = ("privbo_plugins", "optuna_samplers", "raytune_searchers", "sklearn_search")
SPACE = {"x": optuna.distributions.FloatDistribution(0, 1)}


def x_of(trial):
    return trial.suggest_float("x", 0, 1)


def lines_told(act):
    """Files and texts of the lines that warnings of ours point at."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
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
