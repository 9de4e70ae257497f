"""An algorithm that the product has never heard of runs a study as any of its own does."""

import math
import pickle

import numpy as np
import optuna
import pytest

from optuna_samplers import PrivateSampler
from privbo_plugins.errors import BudgetExceededError
from privbo_plugins.privacy import noise as noise_module
from tests.inside import session_of
from tests.optuna_samplers.runs import RECORDS, squares, vault_facts
from tests.sixth import SixthConfig
from tests.worker import child, ended

T, MU = 8, 0.7
N = len(RECORDS)
SPACE = {"x": optuna.distributions.FloatDistribution(0, 1)}


def sampler_of(**settings):
    return PrivateSampler(SixthConfig(MU, T), seed=3, **settings)


def test_a_released_value_carries_the_noise_that_its_share_of_the_budget_asks_for():
    """The oracle is the formula C sqrt(T) / (n mu), and what the values are off by."""
    sampler = PrivateSampler(SixthConfig(MU, 200), seed=3, search_space=SPACE)
    study = optuna.create_study(sampler=sampler)
    study.optimize(sampler.private(squares))
    expected = 1.0 * math.sqrt(200) / (N * MU)
    charges = session_of(sampler, study).ledger()
    assert [c.scale for c in charges] == pytest.approx([expected] * 200, rel=1e-5)
    assert sampler.plan(SPACE, N).value_noise == pytest.approx(expected, rel=1e-5)
    exact = [float(np.mean((t.params["x"] - RECORDS) ** 2)) for t in study.trials]
    noise = np.array([t.value for t in study.trials]) - exact
    # 200 draws: their standard deviation is within a quarter but for 1 run in 10^6.
    assert 0.75 * expected < noise.std() < 1.25 * expected


def test_a_release_beyond_the_budget_is_refused_and_nothing_is_drawn(monkeypatch):
    """Whatever an algorithm asks for: the ledger is not its own."""
    sampler = sampler_of(search_space=SPACE)
    study = optuna.create_study(sampler=sampler)
    study.optimize(sampler.private(squares), n_trials=T - 1)
    plan = session_of(sampler, study).plan
    object.__setattr__(plan, "mu_value", 2 * plan.mu_value)
    drawn = []
    monkeypatch.setattr(noise_module, "_measurement", lambda *a: drawn.append)
    with pytest.raises(BudgetExceededError):
        study.optimize(sampler.private(squares), n_trials=1)
    assert drawn == []
    assert sampler.guarantee(study).mu_spent < MU


def go_on(folder, pickled):
    """A worker that was sent a sampler, and told nothing else."""
    sampler = pickle.loads(pickled)
    study = optuna.load_study(
        study_name="s", storage=f"sqlite:///{folder}/study.db", sampler=sampler
    )
    study.optimize(sampler.private(squares), n_trials=3)


@pytest.mark.slow
def test_a_worker_that_was_sent_a_sampler_goes_on_with_its_run(tmp_path, study_tables):
    sampler = sampler_of(vault=f"sqlite:///{tmp_path}/vault.db", search_space=SPACE)
    study = optuna.create_study(
        storage=f"sqlite:///{tmp_path}/study.db", study_name="s", sampler=sampler
    )
    study.optimize(sampler.private(squares), n_trials=2)
    assert ended(child(go_on, tmp_path, pickle.dumps(sampler))) == 0
    assert len(vault_facts(tmp_path / "vault.db")["releases"]) == 5
    study.optimize(sampler.private(squares), n_trials=50)
    assert len(study.trials) == T
    assert len({t.params["x"] for t in study.trials}) == T
    assert sampler.guarantee(study).protected
