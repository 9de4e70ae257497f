"""Any sampler of Optuna, centrally private."""

import math
import warnings

import numpy as np
import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState

from optuna_samplers import private_objective
from privbo_plugins.errors import PrivacyWarning, UtilityWarning, VaultError
from tests.optuna_samplers.runs import RECORDS, plane, squares, vault_facts

SAMPLERS = {
    "random": lambda: optuna.samplers.RandomSampler(seed=1),
    "tpe": lambda: optuna.samplers.TPESampler(seed=1, n_startup_trials=5),
    "cma-es": lambda: optuna.samplers.CmaEsSampler(seed=1, n_startup_trials=3),
    "grid": lambda: optuna.samplers.GridSampler({"x": np.linspace(0, 1, 30).tolist()}, seed=1),
    "qmc": lambda: optuna.samplers.QMCSampler(seed=1, warn_independent_sampling=False),
    "nsga-ii": lambda: optuna.samplers.NSGAIISampler(seed=1, population_size=4),
    "tpe, constant liar": lambda: optuna.samplers.TPESampler(
        seed=1, n_startup_trials=3, multivariate=True, constant_liar=True
    ),
    "sep-cma-es": lambda: optuna.samplers.CmaEsSampler(
        seed=1, n_startup_trials=3, use_separable_cma=True
    ),
    "cma-es with margin": lambda: optuna.samplers.CmaEsSampler(
        seed=1, n_startup_trials=3, with_margin=True
    ),
    "nsga-iii": lambda: optuna.samplers.NSGAIIISampler(seed=1, population_size=4),
    "brute force": lambda: optuna.samplers.BruteForceSampler(seed=1),
    "partial": lambda: optuna.samplers.PartialFixedSampler(
        {"y": 0.0}, optuna.samplers.RandomSampler(seed=1)
    ),
}
N = 12


def steps(trial):
    return np.clip((trial.suggest_int("x", 0, 99) / 99 - RECORDS) ** 2, 0, 1)


OTHERS = {"partial": plane, "sep-cma-es": plane, "cma-es with margin": plane, "brute force": steps}
"""Objectives of samplers that need more than one parameter, or whole ones."""


def private_of(objective=squares, **more):
    return private_objective(objective, **({"mu": 1, "n_trials": N, "seed": 3} | more))


def study_of(sampler="random", **more):
    with warnings.catch_warnings(action="ignore", category=optuna.exceptions.ExperimentalWarning):
        return optuna.create_study(sampler=SAMPLERS[sampler](), **more)


def complete(study):
    return study.get_trials(states=(TrialState.COMPLETE,))


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_every_sampler_sees_releases_only_and_the_ledger_is_exact(name, direction, tmp_path):
    objective = OTHERS.get(name, squares)
    private = private_of(objective, vault=f"sqlite:///{tmp_path}/v.db")
    study = study_of(name, direction=direction)
    study.optimize(private, n_trials=3 * N)
    facts = vault_facts(tmp_path / "v.db")
    assert len(study.trials) == N == len(facts["ledger"])
    assert sum(mu**2 for *_, mu in facts["ledger"]) == pytest.approx(1.0)
    shown = {str(t.number): t.value for t in study.trials}
    assert shown == facts["published"]
    exact = {float(np.clip(objective(t), 0, 1).mean()) for t in map(fixed, study.trials)}
    assert exact.isdisjoint(shown.values())
    assert facts["held"] == []
    guarantee = private.guarantee(study)
    assert guarantee.protected
    assert not any("did not write" in note for note in guarantee.notes)
    assert (guarantee.n_releases, guarantee.n_records) == (N, len(RECORDS))
    assert guarantee.mu_spent == pytest.approx(1.0)
    assert private.finished(study)
    assert set(private.recommend(study)) == set(study.trials[0].params)


def fixed(trial):
    return optuna.trial.FixedTrial(trial.params)


def test_the_noise_is_what_the_plan_says():
    """400 values at one point: their standard deviation errs by 3.5 %, so once in 10^7 by 19 %."""
    private = private_of(
        lambda trial: np.full(120, 0.5 + 0 * trial.suggest_float("x", 0, 1)), n_trials=400
    )
    study = study_of()
    with pytest.warns(UtilityWarning, match="may learn nothing"):
        study.optimize(private)
    with pytest.warns(UtilityWarning, match="may learn nothing") as caught:
        plan = private.plan({"x": FloatDistribution(0, 1)}, 120)
    assert caught[0].filename == __file__
    values = np.array([t.value for t in study.trials])
    assert plan.value_noise == pytest.approx(20 / 120, rel=1e-5)
    assert values.std() == pytest.approx(plan.value_noise, rel=0.19)
    assert values.mean() == pytest.approx(0.5, abs=5.5 * plan.value_noise / 20)


def test_another_process_goes_on_with_the_ledger(tmp_path):
    storage, vault = f"sqlite:///{tmp_path}/s.db", f"sqlite:///{tmp_path}/v.db"
    study = study_of("tpe", storage=storage, study_name="s")
    study.optimize(private_of(vault=vault), n_trials=5)
    before = vault_facts(tmp_path / "v.db")["releases"]
    again = optuna.load_study(study_name="s", storage=storage, sampler=SAMPLERS["random"]())
    later = private_of(vault=vault)
    again.optimize(later)
    facts = vault_facts(tmp_path / "v.db")
    assert len(facts["releases"]) == len(complete(again)) == N
    assert before.items() <= facts["releases"].items()
    assert later.guarantee(again).mu_spent == pytest.approx(1.0)
    with pytest.raises(VaultError, match="started with another vault"):
        private_of().guarantee(again)
    with pytest.raises(ValueError, match="started with other settings"):
        private_of(vault=vault, n_trials=N + 1).guarantee(again)


def test_parallel_workers_share_one_budget():
    private, study = private_of(plane), study_of("tpe")
    study.optimize(private, n_trials=4 * N, n_jobs=3)
    assert len(complete(study)) >= N
    assert private.guarantee(study).mu_spent == pytest.approx(1.0)
    assert private.guarantee(study).n_releases == N
    assert private.guarantee(study).protected


def test_ask_and_tell():
    private, study = private_of(n_trials=3), study_of()
    for _ in range(3):
        trial = study.ask()
        value = private.tell_private(trial, squares(private.guarded(trial)))
        assert study.trials[-1].value == value
    assert private.finished(study)
    trial = study.ask()
    trial.suggest_float("x", 0, 1)
    with pytest.raises(ValueError, match="one value per validation record"):
        private.tell_private(trial, 0.5)
    assert private.guarantee(study).protected


def test_without_privacy_nothing_is_claimed():
    private, study = private_of(mu=math.inf), study_of()
    with pytest.warns(PrivacyWarning, match="mu is infinite"):
        study.optimize(private)
    exact = [float(squares(fixed(t)).mean()) for t in study.trials]
    assert [t.value for t in study.trials] == pytest.approx(exact)
    assert not private.guarantee(study).protected


def test_a_trial_that_is_over_is_not_told_again_nor_charged():
    private, study = private_of(), study_of()
    trial = study.ask({"x": FloatDistribution(0, 1)})
    study.tell(trial, state=TrialState.FAIL)
    with pytest.raises(ValueError, match="is over and cannot be told"):
        private.tell_private(trial, RECORDS)
    assert private.guarantee(study).n_releases == 0
