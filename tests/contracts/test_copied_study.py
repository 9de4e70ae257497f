"""A study that was copied beside the same vault never shows the release of another point."""

from contextlib import nullcontext

import numpy as np
import optuna
import pytest
from optuna.storages import InMemoryStorage

from optuna_samplers import POGPUCBSampler, answer_trials
from privbo_plugins.errors import PrivacyError
from privbo_plugins.sessions.rows import Curator
from tests.drivers import ON_STUDIES

pytestmark = pytest.mark.usefixtures("quiet")


EVERY_SYSTEM = pytest.mark.parametrize("make", ON_STUDIES.values(), ids=ON_STUDIES)


def copied(study):
    """The same study in another storage, by the same name and number."""
    to = InMemoryStorage()
    optuna.copy_study(from_study_name=study.study_name, from_storage=study._storage, to_storage=to)
    return optuna.load_study(study_name=study.study_name, storage=to, sampler=study.sampler)


def begun(make, folder):
    """A study of two trials, its copy, and a third trial of the study at x = .25."""
    hosted = make(vault=f"sqlite:///{folder}/vault.db")
    private, study = hosted.begun(2)
    copy = copied(study)
    study.enqueue_trial({"x": 0.25})
    study.optimize(private, n_trials=1)
    return hosted, private, study, copy


@pytest.mark.parametrize("x", [0.25, 0.75], ids=["the same point", "another point"])
@EVERY_SYSTEM
def test_a_copy_shows_the_same_release_or_is_refused(make, x, tmp_path):
    hosted, private, study, copy = begun(make, tmp_path)
    copy.enqueue_trial({"x": x})
    refused = pytest.raises(PrivacyError, match="a release at other parameters")
    with refused if x == 0.75 else nullcontext():
        copy.optimize(private, n_trials=1)
    assert study.trials[2].value is not None
    assert copy.trials[2].value == (study.trials[2].value if x == 0.25 else None)
    assert all(hosted.owner(private).guarantee(one).protected for one in (study, copy))


RECORDS = pytest.mark.parametrize("make", [ON_STUDIES["records"], ON_STUDIES["any sampler"]])


@RECORDS
def test_a_release_told_at_another_point_is_no_release(make, tmp_path):
    hosted, private, study, copy = begun(make, tmp_path)
    copy.enqueue_trial({"x": 0.75})
    trial = copy.ask()
    trial.suggest_float("x", 0, 1)
    copy.tell(trial, study.trials[2].value)
    guarantee = hosted.owner(private).guarantee(copy)
    assert guarantee.reasons == ("trials show releases of other parameters than theirs",)


@RECORDS
def test_a_parameter_that_was_overwritten_is_noticed(make):
    """Code around the private objective sees the reward, and may write over a running trial."""
    hosted = make()
    private = hosted.private(hosted.objective)

    def telling(trial):
        value = float(private(trial))
        secret = float(hosted.outcome(0.5).mean())
        storage = trial.study._storage
        storage.set_trial_param(trial._trial_id, "x", secret, trial.distributions["x"])
        return value

    study = hosted.study()
    study.optimize(private, n_trials=1)
    assert hosted.owner(private).guarantee(study).protected
    study.optimize(telling, n_trials=1)
    assert not hosted.owner(private).guarantee(study).protected


def test_replaying_leaves_a_trial_at_another_point_alone(tmp_path):
    hosted, _, _, copy = begun(ON_STUDIES["records"], tmp_path)
    copy.enqueue_trial({"x": 0.75})
    copy.ask().suggest_float("x", 0, 1)
    assert hosted.sampler.replay(copy) == []
    assert copy.trials[2].value is None


def test_a_row_of_a_copy_has_its_own_answer():
    """Answers stand under their row: a trial's number does not matter."""
    X = np.linspace(18.0, 90.0, 20)[:, None]
    curator = Curator(X, epsilon=4, delta=1e-6, bounds=[(18, 90)], outcomes=-abs(X[:, 0] - 50))
    sampler = POGPUCBSampler(curator.release(), seed=0)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    ask = lambda trial: float(curator.evaluate(trial.suggest_int("row", 0, 19)))  # noqa: E731
    study.optimize(ask, n_trials=2)
    copy = copied(study)
    for one, row in ((study, 3), (copy, 4)):
        one.enqueue_trial({"row": row})
        one.ask().suggest_int("row", 0, 19)
        answer_trials(one, curator)
        assert one.trials[2].value == curator.answers()[row]
    assert copy.trials[2].value != study.trials[2].value
