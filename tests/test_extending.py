"""docs/extending.md, any-host.md: all code is that of the files that it names, or runs here."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests import pages
from tests.inside import session_in
from tests.sixth import SixthConfig

ROOT = Path(__file__).parents[1]

MU, T, N = 1.0, 20, 300
"""Budget, trials and records of every run on the page."""


class Block(NamedTuple):
    """A block of code: a part of a file ("in"), or a run ("run")."""

    what: str
    name: str
    code: str


def blocks():
    fenced = [
        one
        for page in pages.ELSEWHERE
        for one in pages.blocks(page)
        if one.language not in pages.READING
    ]
    return [Block(*_labelled(one.language), one.code) for one in fenced]


def _labelled(info):
    """Raises ValueError for a block that nothing would compare or run."""
    language, _, label = info.partition(" ")
    what, _, name = label.partition("=")
    if language != "python" or what not in ("in", "run") or not name:
        raise ValueError(f"Say whose code this is: python in= or run=, not {info!r}.")
    return what, name


def ran(name, folder, monkeypatch):
    """What one run of the page has defined, as a script of a user would in that folder."""
    (code,) = [block.code for block in blocks() if (block.what, block.name) == ("run", name)]
    monkeypatch.chdir(folder)
    defined = {"__name__": "__main__"}
    exec(compile(code, f"extending, {name}", "exec"), defined)
    return defined


def exact(x):
    """The mean that the page's records have, which nobody may see."""
    records = np.random.default_rng(0).uniform(0.4, 0.9, size=N)
    return float(np.mean((x - records) ** 2))


def check_noise(turns):
    """Values carry the noise that the page promises: C sqrt(T) / (n mu), worked out by hand."""
    sd = math.sqrt(T) / (N * MU)
    off = np.array([value - exact(x) for x, value in turns]) / sd
    assert len(off) == T
    # chi-square of 20: outside of these for one run in 10^5
    assert 3.0 < float(off @ off) < 60.0


def check_guarantee(guarantee, printed):
    assert guarantee.protected
    assert (guarantee.mu, guarantee.n_releases, guarantee.n_records) == (MU, T, N)
    assert guarantee.mu_spent == pytest.approx(MU)
    assert "means of clipped values, one a trial" in guarantee.details()
    assert "mu = 1 (Gaussian differential privacy)" in printed


# The page and the files -------------------------------------------------------------------------


def test_what_is_said_to_stand_in_a_file_stands_there():
    quoted = [block for block in blocks() if block.what == "in"]
    assert {block.name for block in quoted} >= {
        "tests/sixth.py",
        "tests/contracts/test_algorithm.py",
        "tests/drivers.py",
        "examples/any_loop.py",
    }
    for block in quoted:
        assert block.code in (ROOT / block.name).read_text(), f"{block.name}: {block.code}"


def test_every_file_that_is_named_exists():
    named = set(
        re.findall(
            r"`((?:\w+/)+\w*(?:\.py)?)`", "".join(page.read_text() for page in pages.ELSEWHERE)
        )
    )
    assert len(named) > 10
    missing = [name for name in named if not (ROOT / name).exists()]
    assert missing == []


# The runs ---------------------------------------------------------------------------------------


def test_it_runs_on_optuna(tmp_path, monkeypatch, capsys):
    pytest.importorskip("optuna", reason="Optuna is not installed (the optuna extra)")
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (the viz extra)")
    run = ran("optuna", tmp_path, monkeypatch)
    sampler, study = run["sampler"], run["study"]
    check_noise([(trial.params["x"], trial.value) for trial in study.trials])
    check_guarantee(sampler.guarantee(study), capsys.readouterr().out)
    assert sampler.recommend(study) == study.best_params
    assert "mu = 1 (Gaussian" in (tmp_path / "sixth.html").read_text()


class Tuner:
    """Calls what Tune calls of a search, in this process; a real fit is another test's."""

    def __init__(self, trainable, *, param_space, tune_config):
        self.trainable, self.space, self.config = trainable, param_space, tune_config

    def fit(self):
        from tests.raytune_searchers.hosts import evaluation

        search, samples = self.config.search_alg, self.config.num_samples
        assert search.set_search_properties(None, None, dict(self.space), num_samples=samples)
        return evaluation(search, self.trainable, 1000 if samples < 0 else samples)


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:ray.*")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_it_runs_on_ray_tune(local_hosts, tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (the viz extra)")
    monkeypatch.setattr("ray.tune.Tuner", Tuner)
    run = ran("ray", tmp_path, monkeypatch)
    search, results = run["search"], run["results"]
    assert search.finished()
    check_noise([(trial.config["x"], trial.metrics["loss"]) for trial in results])
    check_guarantee(search.guarantee(results), capsys.readouterr().out)
    best = min(results, key=lambda trial: trial.metrics["loss"])
    assert search.recommend() == best.config
    assert "mu = 1 (Gaussian" in (tmp_path / "sixth-on-ray.html").read_text()


def test_it_runs_on_the_third_host(tmp_path, monkeypatch, capsys):
    loop = ran("loop", tmp_path, monkeypatch)["loop"]
    turns = [(r.meta["x"][0], r.values[0]) for r in session_in(loop).releases()]
    check_noise(turns)
    check_guarantee(loop.guarantee(), capsys.readouterr().out)
    assert loop.recommend() == {"x": min(turns, key=lambda turn: turn[1])[0]}


def test_rewards_of_users_run_on_the_third_host(tmp_path, monkeypatch, capsys):
    loop = ran("users", tmp_path, monkeypatch)["loop"]
    guarantee = loop.guarantee()
    assert guarantee.protected
    assert (guarantee.n_evaluations, guarantee.most_evaluations) == (3, 1)
    assert loop.recommend()["volume"] in range(11)
    assert "epsilon = 1 at delta = 0 in each" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:ray.*")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_reward_algorithm_runs_on_both_hosts_where_its_class_is_handed_to_them(
    local_hosts, tmp_path, monkeypatch
):
    """As much as the page says of them, and no more: their settings name no entry."""
    optuna = pytest.importorskip("optuna", reason="Optuna is not installed (the optuna extra)")
    from ray import tune

    from privbo_plugins.algorithms.registry import entry_of

    run = ran("rewards", tmp_path, monkeypatch)
    sampler, search = run["sampler"], run["search"]
    study = optuna.create_study(sampler=sampler, direction="maximize")
    study.optimize(sampler.private(lambda trial: trial.suggest_float("x", 0, 1)), n_trials=8)
    assert sampler.guarantee(study).protected
    assert sampler.guarantee(study).n_evaluations == 8
    assert set(sampler.recommend(study)) == {"x"}
    results = Tuner(
        search.private(lambda config: config["x"]),
        param_space={"x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(search_alg=search, num_samples=8),
    ).fit()
    assert search.guarantee(results).n_evaluations == 8
    assert set(search.recommend()) == {"x"}
    with pytest.raises(TypeError, match="names no algorithm"):
        entry_of(run["config"])


def test_settings_of_the_page_are_refused_as_it_says():
    for wrong in ({"mu": 0.0}, {"n_trials": 0}, {"low": 1.0}):
        with pytest.raises(ValueError, match="must be positive, got"):
            SixthConfig(**({"mu": 1.0, "n_trials": 3} | wrong))
