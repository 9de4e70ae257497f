"""Where a run stands, of every sampler: numbers that a program reads, and nothing private."""

from __future__ import annotations

import json
import warnings
from typing import Any

import numpy as np
import optuna
import pytest

from optuna_samplers import (
    DPFTSDESampler,
    DPGIBOSampler,
    DUETSSampler,
    FederatedServer,
    FederationConfig,
    LDPATAGPUCBSampler,
    LDPGPUCBSampler,
    LDPMoMAGPUCBSampler,
    LDPTGPUCBSampler,
    POGPUCBSampler,
)
from privbo_plugins.errors import FederationError, UtilityWarning
from privbo_plugins.federation import Alone
from privbo_plugins.sessions.rows import Curator
from tests.systems import Secrets, objective_of

RANGE = {"bound": 1.0}
FAMILY: list[Any] = [LDPGPUCBSampler, LDPTGPUCBSampler, LDPATAGPUCBSampler, LDPMoMAGPUCBSampler]


def study_of(sampler: Any) -> optuna.Study:
    return optuna.create_study(direction="maximize", sampler=sampler)


def summary_of(sampler: Any, study: optuna.Study, own: Secrets) -> dict[str, Any]:
    """What it says, once it has gone through JSON and no secret was found in it."""
    told = sampler.status(study)
    text = json.dumps(told, allow_nan=False)
    assert own.hits("status", text.encode()) == []
    assert json.loads(text) == told
    return dict(told)


def test_of_records_it_counts_trials_releases_and_mu() -> None:
    own = Secrets(size=16)
    sampler = DPGIBOSampler(1.0, n_starts=2, n_steps=2, seed=0)
    study = study_of(sampler)
    before = summary_of(sampler, study, own)
    assert (before["done"], before["planned"], before["finished"]) == (0, None, False)
    assert (before["releases"], before["recommendation"]) == (0, False)
    for n, finished in ((3, False), (100, True)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UtilityWarning)
            study.optimize(sampler.private(objective_of(own, {})), n_trials=n)
        told, guarantee = summary_of(sampler, study, own), sampler.guarantee(study)
        assert (told["done"], told["counted"]) == (len(study.trials), "trials")
        assert (
            told["planned"] == sampler.plan({"x": study.trials[0].distributions["x"]}, 16).n_trials
        )
        assert told["finished"] is finished is sampler.finished(study)
        assert told["recommendation"] is told["protected"] is True
        assert (told["measure"], told["spent"]) == ("mu", guarantee.mu_spent)
        assert (told["releases"], told["budget"]) == (guarantee.n_releases, 1.0)


@pytest.mark.parametrize("cls", FAMILY)
def test_of_rewards_it_counts_trials_and_the_epsilon_of_a_user(cls: Any) -> None:
    own = Secrets()
    sampler = cls(0.5, n_trials=4, user_budget=5.0, mechanism="laplace", seed=0, **RANGE)
    study = study_of(sampler)
    told = summary_of(sampler, study, own)
    assert (told["releases"], told["spent"], told["finished"]) == (0, 0.0, False)
    private = sampler.private(objective_of(own, {}), user_id=lambda trial: trial.number % 2)
    for n in range(1, 6):
        study.optimize(private, n_trials=1)
        told = summary_of(sampler, study, own)
        assert told == {
            "protected": True, "counted": "trials", "done": n, "planned": 4, "finished": n >= 4,
            "recommendation": True, "releases": n, "measure": "epsilon", "delta": 0.0,
            "spent": 0.5 * -(-n // 2), "budget": 5.0,
        }  # fmt: skip
        assert sampler.finished(study) is (n >= 4)


def test_without_a_number_of_trials_no_plan_is_ever_used_up() -> None:
    sampler = LDPGPUCBSampler(1.0, seed=0, **RANGE)
    study = study_of(sampler)
    study.optimize(sampler.private(lambda trial: trial.suggest_float("x", 0, 1)), n_trials=3)
    told = sampler.status(study)
    assert (told["planned"], told["finished"], told["budget"]) == (None, None, None)
    assert sampler.finished(study) is False


def test_values_that_are_no_releases_are_counted_as_trials_and_cost_everything() -> None:
    own = Secrets()
    sampler = LDPGPUCBSampler(1.0, seed=0, **RANGE)
    study = study_of(sampler)
    study.optimize(sampler.private(lambda trial: trial.suggest_float("x", 0, 1)), n_trials=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study.optimize(objective_of(own, {}), n_trials=2)
        told = summary_of(sampler, study, own)
    assert (told["done"], told["releases"], told["protected"]) == (4, 2, False)
    assert (told["spent"], told["budget"]) == ("inf", "inf")


def test_of_agents_that_share_work_it_has_epochs_too_and_ends_with_the_last() -> None:
    own = Secrets()
    sampler = DUETSSampler(2, epsilon=1.0, n_trials=7, discretisation=64, seed=0, **RANGE)
    study = study_of(sampler)
    assert sampler.finished(study) is False
    for n in range(1, 12):
        study.optimize(sampler.private(objective_of(own, {})), n_trials=1)
        told = summary_of(sampler, study, own)
        assert (told["done"], told["planned"], told["releases"]) == (n, 8, n)
        drawn = n - 1  # the first trial, before the space is known, is nobody's draw
        assert told["finished"] is sampler.finished(study) is (drawn >= 8)
        assert [epoch["epoch"] for epoch in told["epochs"]] == [1] * (drawn >= 4)
    assert (told["agents"], told["spent"]) == (2, 1.0)
    assert study.user_attrs.get("privbo:duets", told).keys() <= told.keys()


def test_of_rows_it_counts_answers_and_what_the_table_costs() -> None:
    own = Secrets()
    X = own.vector(24).reshape(12, 2)
    curator = Curator(
        X, epsilon=4.0, delta=1e-6, bounds=[(0, 1)] * 2, outcomes=np.linspace(0, 1, 12)
    )
    sampler = POGPUCBSampler(curator.release(), seed=0)
    study = study_of(sampler)
    for n in range(3):
        told = summary_of(sampler, study, own)
        assert told == {
            "protected": True, "counted": "answers", "done": n, "planned": None, "finished": None,
            "recommendation": n > 0, "releases": n, "measure": "epsilon", "delta": 1e-6,
            "spent": 4.0, "budget": 4.0,
        }  # fmt: skip
        study.optimize(lambda t: curator.evaluate(t.suggest_int("row", 0, 11)), n_trials=1)
    with pytest.warns(UtilityWarning, match="times as long as they are apart") as caught:
        plan = sampler.plan()
    assert [one.filename for one in caught] == [__file__]
    assert (plan.n_rows, plan.n_columns, plan.epsilon) == (12, 2, 4.0)


def test_of_a_federation_it_counts_rounds_and_nothing_of_the_agent() -> None:
    own = Secrets()
    config = FederationConfig(n_agents=1, epsilon=4.0, n_rounds=2)
    server = FederatedServer(config)
    sampler = DPFTSDESampler(server.connect(0), seed=0)
    study = optuna.create_study(study_name=own.token, sampler=sampler)
    with pytest.warns(UtilityWarning, match="agents will learn little") as caught:
        plan = sampler.plan()
    assert [one.filename for one in caught] == [__file__]
    assert (plan.n_rounds, plan.n_agents) == (2, 1)
    for _ in range(8):
        released = len(server.broadcasts())
        told = summary_of(sampler, study, own)
        assert (told["done"], told["planned"], told["counted"]) == (released, 2, "rounds")
        assert told["finished"] is sampler.finished(study) is (released == 2)
        assert told["spent"] == server.guarantee().epsilon_spent
        assert (told["budget"], told["recommendation"]) == (server.guarantee().epsilon, None)
        study.optimize(objective_of(own, {}), n_trials=1)
    assert released == 2
    assert sampler.status() == sampler.status(study)


def test_an_agent_whose_server_is_gone_says_so() -> None:
    class Gone(Alone):
        def guarantee(self) -> Any:
            raise FederationError("The server cannot be reached.")

    server = FederatedServer(FederationConfig(n_agents=1, epsilon=4.0))
    sampler = DPFTSDESampler(Gone(server.connect(0)), seed=0)
    for ask in (sampler.status, sampler.finished):
        with pytest.raises(FederationError, match="cannot be reached"):
            ask()
