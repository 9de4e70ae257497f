"""A private study from the first trial to the recommendation, and every way to leave the path."""

import json
import math
import warnings
from pathlib import Path

import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.samplers import TPESampler
from optuna.trial import TrialState

from privbo_plugins.errors import ObjectiveFailedError, PrivacyWarning, VaultError
from privbo_plugins.privacy.noise import InsecureNoise, SecureNoise
from privbo_plugins.store.transaction import Transaction
from tests.inside import fail, n_compared, session_of, unspent
from tests.optuna_samplers.runs import RECORDS, begun_study, make_sampler, squares, vault_facts
from tests.optuna_samplers.scenes import studies
from tests.worker import children

DESCENT = 2 + 2 * 2  # trials of make_sampler() on one parameter, before the last are compared


def ledger(sampler, study):
    return session_of(sampler, study).ledger()


def ask(study):
    trial = study.ask()
    trial.suggest_float("x", 0, 1)
    return trial


# End to end -----------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_a_private_study_finds_the_optimum_in_both_directions(direction):
    sign = 1 if direction == "minimize" else -1
    sampler = make_sampler(mu=50.0, n_steps=8, loss_bound=(0, 1) if sign == 1 else (-1, 0))
    study = optuna.create_study(sampler=sampler, direction=direction)
    study.optimize(sampler.private(lambda trial: sign * squares(trial)))
    last = n_compared(session_of(sampler, study).releases())
    assert len(study.trials) == 2 + 8 * 2 + last
    # A start is at most .35 away, and at mu=50 noise is below .01 of a step: no luck is needed.
    assert abs(sampler.recommend(study)["x"] - RECORDS.mean()) < 0.15
    assert sampler.guarantee(study).protected
    finals = study.trials[-last:]
    assert {trial.user_attrs["privbo:role"] for trial in finals} == {"final 8"}
    assert sampler.recommend(study) in [trial.params for trial in finals]


def test_the_study_stops_with_its_plan_and_then_replays_its_recommendation():
    sampler, study = begun_study()
    study.optimize(sampler.private(squares), n_trials=100)
    session = session_of(sampler, study)
    last = n_compared(session.releases())
    planned = DESCENT + last
    assert len(study.trials) == planned
    charges = ledger(sampler, study)
    assert len(charges) == planned + 2 + 1
    left = unspent(session.plan, last)
    assert math.fsum(c.mu**2 for c in charges) + left == pytest.approx(1.0)
    for again in range(1, 3):
        study.optimize(sampler.private(squares), n_trials=100)
        assert len(study.trials) == planned + again
        assert study.trials[-1].value == study.trials[planned].value
        assert study.trials[-1].params == sampler.recommend(study)
        assert study.trials[-1].user_attrs["privbo:role"].endswith("carried")
    assert ledger(sampler, study) == charges
    assert sampler.guarantee(study).protected


# Ask and tell ---------------------------------------------------------------------------------


def test_an_error_of_tell_private_leaves_the_trial_running_and_tellable():
    sampler, study = begun_study()
    first = ask(study)
    with pytest.raises(ValueError, match="single number"):
        sampler.tell_private(first, 0.5)
    assert ledger(sampler, study) == []
    sampler.tell_private(first, squares(first))
    second = ask(study)
    with pytest.raises(ValueError, match="same 120"):
        sampler.tell_private(second, squares(second)[1:])
    assert study.trials[1].state == TrialState.RUNNING
    assert len(ledger(sampler, study)) == 1
    value = sampler.tell_private(second, squares(second))
    assert study.trials[1].value == value
    assert len(ledger(sampler, study)) == 2


# Other trials ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("study_tables")
def test_a_stale_trial_is_retried_under_its_own_name(tmp_path):
    """What the heartbeat does for a worker that died: once before its release, once after."""
    sampler = make_sampler(vault=f"sqlite:///{tmp_path}/vault.db")
    study = optuna.create_study(sampler=sampler, storage=f"sqlite:///{tmp_path}/study.db")
    study.optimize(sampler.private(squares), n_trials=3)
    with warnings.catch_warnings(action="ignore", category=optuna.exceptions.ExperimentalWarning):
        retry = optuna.storages.RetryHeartbeatStaleTrialCallback()
    unreleased, released = ask(study), ask(study)
    value = sampler.private(squares)(released)
    for trial in (unreleased, released):
        fail(study, trial)
        retry(study, study.trials[trial.number])
    study.optimize(sampler.private(squares))
    retried = {t.system_attrs.get("failed_trial"): t for t in study.trials}
    assert retried[released.number].value == value
    assert retried[unreleased.number].params == unreleased.params
    facts = vault_facts(tmp_path / "vault.db")
    own_names = {str(retried[trial.number].number) for trial in (unreleased, released)}
    assert own_names.isdisjoint(row[0] for row in facts["trials"])  # nor is it a trial of its own
    last = n_compared(session_of(sampler, study).releases())
    assert len(facts["ledger"]) == DESCENT + last + 2 + 1
    assert sampler.guarantee(study).protected


# Leaving the guarantee ------------------------------------------------------------------------


def go_on(sampler, study):
    """Runs the private objective to the end and returns the guarantee."""
    study.optimize(sampler.private(squares))
    return sampler.guarantee(study)


def bare_vector(trial):
    return squares(trial)


def bare_error(trial):
    raise ValueError(f"mean {squares(trial).mean()}")


def bare_attribute(trial):
    trial.set_user_attr("raw", squares(trial).tolist())
    raise ValueError


def bare_pruned(trial):
    trial.report(float(squares(trial).mean()), 0)
    raise optuna.TrialPruned


@pytest.mark.parametrize("bare", [bare_vector, bare_error, bare_attribute, bare_pruned])
def test_a_forgotten_wrapper_is_noticed_whatever_the_trial_came_to(bare):
    sampler, study = begun_study(2)
    with pytest.warns(PrivacyWarning, match="sampler.private"):
        study.optimize(bare, n_trials=1, catch=(ValueError,))
    assert study.trials[-1].state != TrialState.COMPLETE
    guarantee = go_on(sampler, study)
    assert not guarantee.protected
    assert "outside sampler.private" in guarantee.details()


def test_a_forgotten_wrapper_stops_the_study_at_once():
    _, study = begun_study()
    with pytest.warns(PrivacyWarning, match="sampler.private"):
        study.optimize(bare_vector, n_trials=50)
    assert len(study.trials) == 1


@pytest.mark.filterwarnings("ignore::privbo_plugins.errors.PrivacyWarning")
def test_a_source_that_only_says_it_is_secure_is_not_believed():
    class Silent(SecureNoise):
        def add_gaussian(self, value, scale):
            return value

    sampler, study = begun_study(noise=Silent())
    assert not go_on(sampler, study).protected


@pytest.mark.parametrize("settings", [{"mu": float("inf")}, {"noise": InsecureNoise(0)}])
def test_a_run_without_a_guarantee_says_so_at_its_first_trial(settings):
    sampler, study = begun_study(**settings)
    with pytest.warns(PrivacyWarning, match="Nothing is protected"):
        study.ask()
    for _ in range(2):
        assert not sampler.guarantee(study).protected
        assert "NOT PROTECTED" in study.user_attrs["privbo:guarantee"]
        study.optimize(sampler.private(squares))


# Seeds and copies -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [3, 2**40])  # NumPy's own end at 2**32
def test_reseeding_changes_independent_draws_only(seed):
    first = []
    for reseed in (False, False, True):
        sampler, study = begun_study(search_space={"x": FloatDistribution(0, 1)}, seed=seed)
        if reseed:
            sampler.reseed_rng()
        trial = study.ask()
        first.append((trial.suggest_float("x", 0, 1), trial.suggest_float("other", 0, 1)))
    assert first[0] == first[1]
    assert first[0][0] == first[2][0]
    assert first[0][1] != first[2][1]


def test_one_seed_gives_the_same_candidates_in_every_process(tmp_path):
    outs = [str(tmp_path / f"{i}.json") for i in range(2)]
    assert children(studies.candidates, *((4, out) for out in outs)) == [0, 0]
    found = [json.loads(Path(out).read_text()) for out in outs]
    studies.candidates(4, str(tmp_path / "here.json"))
    assert found[0] == found[1] == json.loads((tmp_path / "here.json").read_text())
    studies.candidates(5, str(tmp_path / "other.json"))
    assert found[0] != json.loads((tmp_path / "other.json").read_text())


# Spaces ---------------------------------------------------------------------------------------


def test_single_valued_parameters_are_recommended_too():
    ended = []

    def objective(trial):
        if ended:
            raise ValueError
        trial.suggest_float("constant", 0.5, 0.5)
        return squares(trial)

    sampler, study = begun_study()
    study.optimize(sampler.private(objective))
    assert set(sampler.recommend(study)) == {"x", "constant"}
    ended.append(True)
    study.optimize(sampler.private(objective), n_trials=1, catch=(RuntimeError,))
    assert set(sampler.recommend(study)) == {"x", "constant"}


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_every_attempt_of_a_trial_pays_for_its_training():
    """Twelve trainings of four trials were charged as four."""
    sampler, trained = make_sampler(training_mu=0.5), []

    def objective(trial):
        losses = squares(trial)
        trained.append(trial.number)
        if len(trained) % 3:
            raise RuntimeError("the machine went away")
        return losses

    study = optuna.create_study(sampler=sampler)
    retry = optuna.storages.RetryHeartbeatStaleTrialCallback()
    for _ in range(4):
        study.optimize(sampler.private(objective), n_trials=1, catch=(Exception,))
        for _ in range(2):
            retry(study, study.trials[-1])
            study.optimize(sampler.private(objective), n_trials=1, catch=(Exception,))
    assert len(trained) == 12
    training = [c for c in ledger(sampler, study) if c.population == "training"]
    assert len(training) == 12
    notes = sampler.guarantee(study).details()
    assert "12 trainings declared 0.5-GDP each compose to 1.733-GDP" in notes


def test_an_objective_called_again_on_one_trial_pays_again():
    sampler, tries = make_sampler(training_mu=0.5), []

    def objective(trial):
        tries.append(1)
        if len(tries) == 1:
            raise RuntimeError
        return squares(trial)

    study = optuna.create_study(sampler=sampler)
    private = sampler.private(objective)

    def twice(trial):
        try:
            return float(private(trial))
        except ObjectiveFailedError:
            return float(private(trial))

    study.optimize(twice, n_trials=1)
    assert "2 trainings" in sampler.guarantee(study).details()


def test_a_training_is_remembered_as_paid_only_once_its_charge_is_committed(monkeypatch):
    sampler, study = begun_study(training_mu=0.5)
    sampler.guarantee(study)  # opens the run
    charge = Transaction.charge

    def refused(*_):
        raise VaultError("the vault is away")

    monkeypatch.setattr(Transaction, "charge", refused)
    with pytest.raises(VaultError):
        study.ask()
    monkeypatch.setattr(Transaction, "charge", charge)
    study.optimize(sampler.private(squares), n_trials=1)
    assert "1 training declared" in sampler.guarantee(study).details()


def test_training_is_charged_under_another_sampler_too():
    sampler = make_sampler(training_mu=0.5)
    study = optuna.create_study(sampler=TPESampler(seed=0))
    study.optimize(sampler.private(squares), n_trials=4)
    assert (
        "4 trainings declared 0.5-GDP each compose to 1-GDP" in sampler.guarantee(study).details()
    )
    study.sampler = sampler
    study.optimize(sampler.private(squares), n_trials=1)
    assert "5 trainings" in sampler.guarantee(study).details()
