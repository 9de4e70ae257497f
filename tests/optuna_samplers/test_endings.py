"""Trials that never come to an end: pruned, failed, or of an unprotected run."""

import optuna
import pytest
from optuna.trial import TrialState

from optuna_samplers import DPGIBOSampler, LDPGPUCBSampler
from privbo_plugins.errors import ObjectiveFailedError, UtilityWarning
from privbo_plugins.sessions.scheduler import FRUITLESS
from tests.optuna_samplers.runs import RECORDS


def make(**settings):
    return DPGIBOSampler(1.0, seed=3, n_starts=4, n_steps=20, **settings)


def slowly(trial):
    """Reports its training's loss before it has losses of records."""
    x, y = trial.suggest_float("x", 0, 1), trial.suggest_float("y", 0, 1)
    for epoch in range(4):
        trial.report((x - 0.6) ** 2 + y**2 + 1 / (epoch + 1), epoch, public=True)
        if trial.should_prune(public=True):
            raise optuna.TrialPruned
    return (x - RECORDS) ** 2 + y**2


class EveryPruner(optuna.pruners.BasePruner):
    """Prunes every trial."""

    def prune(self, study, trial):
        return True


@pytest.mark.parametrize("system", ["records", "rewards"])
def test_catch_knows_what_kind_of_exception_the_objective_raised(system):
    def broken(trial):
        trial.suggest_float("x", 0, 1)
        raise KeyError("Jane Doe") if trial.number == 2 else ValueError("Jane Doe")

    sampler = make()
    if system == "rewards":
        sampler = LDPGPUCBSampler(1.0, value_range=(0, 1), seed=3)
    study = optuna.create_study(sampler=sampler)
    with pytest.raises(ObjectiveFailedError, match="raised KeyError") as raised:
        study.optimize(sampler.private(broken), n_trials=5, catch=(ValueError,))
    assert isinstance(raised.value, KeyError)
    assert len(study.trials) == 3
    assert "Jane" not in str(raised.value) + repr(raised.value)


def test_a_pruner_that_spares_nobody_ends_the_loop_and_another_may_try_again():
    sampler = make()
    study = optuna.create_study(sampler=sampler, pruner=EveryPruner())
    with pytest.warns(UtilityWarning, match="nothing was released of 50 trials") as caught:
        study.optimize(sampler.private(slowly), n_trials=400)
    assert len(study.trials) == FRUITLESS
    assert "NopPruner" in str(caught[-1].message)
    study.pruner = optuna.pruners.NopPruner()
    study.optimize(sampler.private(slowly), n_trials=400)
    assert sampler.finished(study)


@pytest.mark.filterwarnings("ignore::privbo_plugins.errors.PrivacyWarning")
def test_ask_and_tell_is_warned_where_there_is_no_loop_to_stop():
    sampler = make()
    study = optuna.create_study(sampler=sampler)

    def fail_all():
        for _ in range(FRUITLESS):
            trial = study.ask()
            trial.suggest_float("x", 0, 1)
            study.tell(trial, state=TrialState.FAIL)

    with pytest.warns(UtilityWarning, match="50 trials failed one after another"):
        fail_all()
