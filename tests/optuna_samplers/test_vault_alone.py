"""What a vault alone says of a study is what its sampler says, until the study shows more."""

import numpy as np
import optuna
import pytest

from optuna_samplers import DPGIBOSampler, PrivateSampler
from privbo_plugins.algorithms.dp_gibo import GIBOConfig
from privbo_plugins.errors import PrivacyWarning, VaultError
from privbo_plugins.sessions.stored import run_named
from privbo_plugins.store.vault import open_vault


def losses(trial):
    x = trial.suggest_float("x", 0, 1)
    kind = trial.suggest_categorical("kind", ["a", "b"])
    return np.linspace(0.1, 0.9, 20) * x + (kind == "b")


def reward(trial):
    return 1 - abs(float(trial.suggest_float("x", 0, 1)) - 0.5)


def alone(url):
    return run_named(open_vault(url), None)


def test_what_only_the_study_shows_the_vault_does_not_know_until_it_was_compared(tmp_path):
    url = f"sqlite:///{tmp_path}/v.db"
    sampler = DPGIBOSampler(1.0, n_starts=2, n_steps=2, vault=url)
    study = optuna.create_study(study_name="digits", sampler=sampler)
    study.optimize(sampler.private(losses), n_trials=3)
    study.add_trial(optuna.trial.create_trial(value=0.48151623))
    assert alone(url).guarantee.protected
    assert any("sampler.guarantee(study)" in fact for fact in alone(url).not_known)
    assert not sampler.guarantee(study).protected
    assert alone(url).guarantee == sampler.guarantee(study)


def test_a_run_of_plain_floats_is_told_as_unprotected(tmp_path):
    url = f"sqlite:///{tmp_path}/v.db"
    sampler = DPGIBOSampler(1.0, n_starts=2, n_steps=2, vault=url)
    study = optuna.create_study(study_name="digits", sampler=sampler)
    with pytest.warns(PrivacyWarning, match="Nothing is protected"):
        study.optimize(lambda trial: reward(trial) + 0.048151623, n_trials=3)
    assert alone(url).guarantee == sampler.guarantee(study)
    page = alone(url).report().to_html()
    assert "NOT PROTECTED" in page
    assert not any(repr(trial.value) in page for trial in study.trials)
    shown = sampler.report(study, tmp_path / "r.html").read_text()
    assert not any(repr(trial.value) in shown for trial in study.trials)


@pytest.mark.parametrize(
    "shown",
    [
        5,
        True,
        "ab",
        {"0": 1},
        [1],
        [1, "", 2],
        [-1, ""],
        ["3", ""],
        [3.0, ""],
        [2**63, ""],
        [1, 2],
        [0, "ab"],
    ],
    ids=repr,
)
def test_a_damaged_head_of_a_study_stops_the_run_and_charges_nothing(tmp_path, shown):
    url = f"sqlite:///{tmp_path}/v.db"
    sampler = DPGIBOSampler(1.0, n_starts=2, n_steps=2, vault=url)
    study = optuna.create_study(study_name="digits", sampler=sampler)
    study.optimize(sampler.private(losses), n_trials=1)
    (head,) = (name for name in study.user_attrs if name.startswith("privbo:head"))
    study.set_user_attr(head, shown)
    spent = alone(url).guarantee.epsilon_at(1e-6)
    for again in (sampler, DPGIBOSampler(1.0, n_starts=2, n_steps=2, vault=url)):
        study.sampler = again
        with pytest.raises(VaultError, match="has been changed"):
            study.optimize(again.private(losses), n_trials=1)
    assert alone(url).n_releases == 1
    assert alone(url).guarantee.epsilon_at(1e-6) == spent


def test_a_run_whose_first_step_is_under_way_has_a_report_as_well(tmp_path):
    url = f"sqlite:///{tmp_path}/v.db"
    sampler = PrivateSampler(GIBOConfig.paper(1.0, n_steps=2, batch_size=3), vault=url)
    study = optuna.create_study(study_name="digits", sampler=sampler)
    study.optimize(sampler.private(losses), n_trials=2)
    page = alone(url).report().to_html()
    assert repr(sampler.recommend(study)["x"]) in page
    assert alone(url).n_releases == 0
