"""No raw reward in any byte that agents of one study leave behind."""

from __future__ import annotations

import io
import pickle
import warnings
from pathlib import Path
from typing import Any

import optuna
import pytest
import test_ldp_leaks as ldp
from optuna.distributions import FloatDistribution
from test_ldp_leaks import NUMBERS, WAYS, Traces, Ward, debug_log  # noqa: F401

from optuna_samplers import DUETSSampler
from privbo_plugins.algorithms.duets import DUETS
from privbo_plugins.privacy.local import LocalMechanism

SUMMARY = "privbo:duets"


def make(**settings: Any) -> DUETSSampler:
    known = {
        "epsilon": 1.0,
        "reward_range": (0.0, 1.0),
        "mechanism": "laplace",
        "discretisation": 64,
        "search_space": {"x": FloatDistribution(0, 1)},
        "seed": 0,
    }
    return DUETSSampler(2, **(known | settings))


@pytest.mark.slow
@pytest.mark.parametrize("n_jobs", [1, 3])
def test_a_study_leaves_no_raw_reward(
    n_jobs: int,
    tmp_path: Path,
    debug_log: io.StringIO,  # noqa: F811
    capfd: pytest.CaptureFixture[str],
) -> None:
    ward, traces = Ward(21), Traces(tmp_path, "sqlite" if n_jobs == 1 else "journal")
    ldp._WARD.append(ward)
    ldp._WHO.append(ldp._Names(ward))
    sampler = make(vault=f"sqlite:///{tmp_path}/vault.db")
    private = sampler.private(ldp._module_wild, user_id=ldp._who)
    n_trials = len(WAYS | NUMBERS) + 8
    study = ldp._traces(traces, sampler, private, debug_log, capfd, n_trials, n_jobs)
    traces.add("recommendation", repr(sampler.recommend(study)))
    traces.add_objects("at the end", objective=private)
    guarantee = private.guarantee(study)
    traces.add("guarantee", str(guarantee) + repr(guarantee) + repr(guarantee.to_dict()))
    algorithm = sampler._state(study).algorithm
    assert isinstance(algorithm, DUETS)
    heard = [broadcast.to_dict() for broadcast in algorithm.party.heard]
    traces.add("broadcasts", repr(heard) + repr(algorithm.state_dict()))
    traces.add("broadcasts in bytes", pickle.dumps([heard, algorithm.server.state_dict()]))

    states = [trial.state.name for trial in study.trials]
    assert states.count("FAIL") == len(WAYS) - 1
    assert guarantee.protected
    assert guarantee.n_plays == states.count("COMPLETE") == guarantee.most_plays
    assert study.user_attrs[SUMMARY]["epoch"] == algorithm.epoch >= 3
    assert len(heard) >= 2
    ldp._check_clean(ward, study, traces)


def test_a_short_study_leaves_no_raw_reward(
    tmp_path: Path,
    debug_log: io.StringIO,  # noqa: F811
    capfd: pytest.CaptureFixture[str],
) -> None:
    ward, traces = Ward(22), Traces(tmp_path, "sqlite")
    ldp._WARD.append(ward)
    sampler = make()
    study = ldp._traces(traces, sampler, sampler.private(_quiet_reward), debug_log, capfd, 6)
    assert sampler.guarantee(study).protected
    assert SUMMARY in study.user_attrs
    assert len(ward.rewards) == 6
    ldp._check_clean(ward, study, traces)


def _quiet_reward(trial: Any) -> float:
    return float(ldp._WARD[-1].good(trial))


def test_control_without_epsilon_rewards_are_found(
    tmp_path: Path,
    debug_log: io.StringIO,  # noqa: F811
    capfd: pytest.CaptureFixture[str],
) -> None:
    ward, traces = Ward(23), Traces(tmp_path, "sqlite")
    ldp._WARD.append(ward)
    study = ldp._traces(traces, make(epsilon=float("inf")), _quiet_reward, debug_log, capfd, 6)
    assert study.user_attrs["privbo:guarantee"].startswith("NOT PROTECTED")
    found = {ldp._place(hit) for hit in ward.scanner.scan(traces.artefacts)}
    assert found >= {"files", "pickles", "log", "console"}


def test_control_what_agents_send_is_searched_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An agent with fewer rewards than a projection has numbers sends them as they are."""
    monkeypatch.setattr(LocalMechanism, "randomize", lambda self, y, noise, worst: y)
    ward, sampler = Ward(24), make()
    study = optuna.create_study(sampler=sampler, direction="maximize")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study.optimize(sampler.private(ward.good), n_trials=3)
    assert sampler.recommend(study)
    algorithm = sampler._state(study).algorithm
    assert isinstance(algorithm, DUETS)
    for trial in study.trials:
        algorithm.tell(algorithm.play_of(tuple(trial.system_attrs["privbo:draw"])), trial.value)
    assert ward.scanner.hits(repr(algorithm.state_dict()).encode())


@pytest.mark.filterwarnings("ignore:Nothing is protected:privbo_plugins.errors.PrivacyWarning")
def test_the_plugins_prefix_hides_no_attribute() -> None:
    sampler = make()
    study = optuna.create_study(sampler=sampler, direction="maximize")
    study.optimize(sampler.private(lambda trial: trial.suggest_float("x", 0, 1)), n_trials=2)
    assert sampler.guarantee(study).protected

    def beside(trial: optuna.Trial) -> float:
        trial.set_user_attr("privbo:raw", trial.suggest_float("x", 0, 1))
        raise optuna.TrialPruned

    study.optimize(beside, n_trials=1)
    guarantee = sampler.guarantee(study)
    assert not guarantee.protected
    assert "data beside the reward" in str(guarantee)
    assert "1 trials failed or were pruned" in str(guarantee.notes)
