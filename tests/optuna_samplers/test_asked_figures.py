"""What was asked for, on every host that takes it: the pair comes first, and is not exceeded."""

import re

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState
from sklearn.linear_model import LogisticRegression

from optuna_samplers import DPGIBOSampler, LDPGPUCBSampler, ldp_objective, private_objective
from privbo_plugins.errors import BudgetExceededError
from privbo_plugins.sessions.certificates import issue
from privbo_plugins.sessions.stored import run_named
from privbo_plugins.store.vault import open_vault
from sklearn_search import PrivateSearch

PAIR = {"epsilon": 4.005, "delta": 2e-5}
RECORDS = np.linspace(0, 1, 60)


def losses(trial):
    return np.asarray((trial.suggest_float("x", 0, 1) - RECORDS) ** 2)


def by_sampler(url):
    sampler = DPGIBOSampler(**PAIR, n_trials=12, vault=url)
    study = optuna.create_study(study_name="s", sampler=sampler)
    study.optimize(sampler.private(losses), n_trials=3)
    return sampler.guarantee(study)


def by_objective(url):
    private = private_objective(losses, **PAIR, n_trials=5, vault=url)
    study = optuna.create_study(study_name="s", sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(private)
    return private.guarantee(study)


def by_search(url):
    rng = np.random.default_rng(0)
    search = PrivateSearch(
        LogisticRegression(), {"C": optuna.distributions.FloatDistribution(0.1, 9)}, **PAIR,
        loss="brier", method="released-means", n_trials=4, vault=url, refit=False,
    )  # fmt: skip
    guarantee = search.fit(rng.normal(size=(80, 2)), rng.integers(0, 2, 80)).guarantee_
    return guarantee


@pytest.mark.filterwarnings("ignore::privbo_plugins.errors.UtilityWarning")
@pytest.mark.parametrize("run", [by_sampler, by_objective, by_search])
def test_the_pair_that_was_asked_for_is_told_first_and_kept(run, tmp_path):
    url = f"sqlite:///{tmp_path}/vault.db"
    guarantee, vault = run(url), open_vault(url)
    stored = run_named(vault, None)
    certificate = issue([stored]).facts
    first = {"delta": PAIR["delta"], "epsilon": PAIR["epsilon"]}
    for figures in (guarantee.figures(), stored.guarantee.figures(), certificate["figures"]):
        assert figures["epsilons"][0] == first
    rows = dict(certificate["statement"]["folded"])
    assert rows["Epsilon at delta = 2e-05"] == "4.005"
    for text in (str(guarantee), guarantee.lasting, str(stored.guarantee)):
        assert "epsilon = 4.005 at delta = 2e-05, as asked for" in text
        assert {float(e) for e in re.findall(r"epsilon = ([\d.]*\d)", text)} == {PAIR["epsilon"]}


def test_a_budget_of_users_at_a_delta_composes_on_optuna(tmp_path):
    """A Gaussian evaluation elsewhere leaves no budget at delta 0, and less of it above."""
    url = f"sqlite:///{tmp_path}/vault.db"

    def private(budget, at, **how):
        return ldp_objective(
            lambda trial: trial.suggest_float("x", 0, 1), epsilon=0.5, value_range=(0, 1),
            user_id="Jane", user_budget=budget, user_delta=at, vault=url, **how,
        )  # fmt: skip

    def asked(objective, n):
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
        study.optimize(objective, n_trials=n, catch=(BudgetExceededError,))
        return len(study.get_trials(states=(TrialState.COMPLETE,)))

    with pytest.raises(ValueError, match="Give user_delta="):
        private(2.0, 0.0, mechanism="gaussian", delta=1e-5)
    assert asked(private(2.0, 1e-4, mechanism="gaussian", delta=1e-5), 2) == 2
    assert asked(private(9.0, 0.0), 1) == 0
    assert 0 < asked(private(2.0, 1e-4), 5) < 4  # four would fit without the other two
    sampler = LDPGPUCBSampler(epsilon=0.5, value_range=(0, 1), user_budget=1.0, user_delta=1e-6)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    wrapped = sampler.private(lambda trial: trial.suggest_float("x", 0, 1), user_id="Joe")
    study.optimize(wrapped, n_trials=3, catch=(BudgetExceededError,))
    assert sampler.guarantee(study).delta_most == 1e-6
    assert sampler.guarantee(study).epsilon <= 1.0
