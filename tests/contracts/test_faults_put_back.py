"""A study remembers how far its releases had come, whatever happens to its vault."""

import shutil

import optuna
import pytest

from privbo_plugins.errors import VaultError
from tests.drivers import ON_STUDIES
from tests.optuna_samplers.runs import begun_study, rows


class Scene:
    """A study on disk and a vault, each run by objects of its own, as after a restart."""

    def __init__(self, folder, system):
        self.folder, self.system = folder, system
        self.vault, self.backup = folder / "vault.db", folder / "backup.db"
        self.storage = f"sqlite:///{folder}/study.db"

    def run_in(self, study, vault, n):
        hosted = ON_STUDIES[self.system](vault=f"sqlite:///{vault}")
        study.sampler = hosted.sampler
        study.optimize(hosted.private(hosted.objective, **hosted.named), n_trials=n)

    def study(self):
        return optuna.create_study(storage=self.storage, study_name="s", load_if_exists=True)

    def run(self, n, vault=None):
        study = self.study()
        self.run_in(study, vault or self.vault, n)
        return study

    def drawn(self):
        return len(rows(self.vault, "SELECT * FROM privbo_events"))


@pytest.fixture(params=ON_STUDIES)
def scene(request, tmp_path, study_tables):
    return Scene(tmp_path, request.param)


few = pytest.mark.parametrize(
    "scene",
    [s if s in ("records", "rewards") else pytest.param(s, marks=pytest.mark.soak)
     for s in ON_STUDIES],
    indirect=True,
)  # fmt: skip
"""For one system of each kind of ledger; every system notices a vault that was put back."""


def test_a_study_refuses_a_vault_that_was_put_back(scene):
    scene.run(2)
    shutil.copy(scene.vault, scene.backup)
    scene.run(2)
    values = [trial.value for trial in scene.study().trials]
    for _ in range(3):
        shutil.copy(scene.backup, scene.vault)
        before = scene.drawn()
        with pytest.raises(VaultError, match="older backup"):
            scene.run(1)
        assert scene.drawn() == before
    trials = scene.study().trials
    assert [t.value for t in trials if t.value is not None] == values
    assert all(trial.state.is_finished() for trial in trials), "none is left as if it ran"


@few
def test_a_study_refuses_a_vault_that_was_put_back_and_has_grown_again(scene):
    scene.run(2)
    shutil.copy(scene.vault, scene.backup)
    shutil.copy(scene.folder / "study.db", scene.folder / "old study.db")
    scene.run(2)
    later = (scene.folder / "study.db").read_bytes()
    shutil.copy(scene.backup, scene.vault)
    shutil.copy(scene.folder / "old study.db", scene.folder / "study.db")
    scene.run(3)  # both were put back: nothing shows it, and the vault grows past where it was
    (scene.folder / "study.db").write_bytes(later)
    with pytest.raises(VaultError, match="older backup"):
        scene.run(1)


def test_a_vault_that_is_put_back_while_a_sampler_lives_is_noticed(scene):
    study = scene.run(2)
    shutil.copy(scene.vault, scene.backup)
    scene.run_in(study, scene.vault, 1)

    def back(study, trial):
        shutil.copy(scene.backup, scene.vault)

    again = scene.study()
    original = again.optimize

    def optimize(objective, n_trials):
        original(objective, n_trials=n_trials, callbacks=[back])

    again.optimize = optimize
    with pytest.raises(VaultError, match="older backup"):
        scene.run_in(again, scene.vault, 3)


@few
def test_workers_on_two_copies_of_a_vault_do_not_both_go_on(scene):
    scene.run(2)
    copy = scene.folder / "copy.db"
    shutil.copy(scene.vault, copy)
    scene.run(1, copy)  # whoever comes second finds what the first one has shown
    with pytest.raises(VaultError, match=r"older backup|copy"):
        scene.run(1)


@few
def test_a_vault_and_a_study_that_move_go_on(scene):
    scene.run(2)
    elsewhere = Scene(scene.folder / "elsewhere", scene.system)
    elsewhere.folder.mkdir()
    shutil.move(scene.vault, elsewhere.vault)
    shutil.move(scene.folder / "study.db", elsewhere.folder / "study.db")
    assert len(elsewhere.run(2).trials) == 4


def test_nothing_of_it_shows_where_the_vault_is_in_memory():
    _, study = begun_study(2)
    assert not [name for name in study.user_attrs if "head" in name or "place" in name]
