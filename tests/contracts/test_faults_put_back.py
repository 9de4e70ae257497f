"""A study or a search remembers how far its releases had come, whatever happens to its vault."""

import shutil

import optuna
import pytest

from privbo_plugins.errors import VaultError
from tests.drivers import ON_STUDIES, STUDIES, begin
from tests.inside import end_host, host_name
from tests.optuna_samplers.runs import begun_study, rows
from tests.raytune_searchers.hosts import crash


class Scene:
    """A study on disk and a vault, each run by objects of its own, as after a restart."""

    def __init__(self, folder, system):
        self.folder, self.system = folder, system
        self.vault, self.backup = folder / "vault.db", folder / "backup.db"
        self.storage = f"sqlite:///{folder}/study.db"

    def run(self, n, vault=None):
        hosted = ON_STUDIES[self.system](vault=f"sqlite:///{vault or self.vault}")
        study = optuna.create_study(
            storage=self.storage, study_name="s", sampler=hosted.sampler, load_if_exists=True
        )
        study.optimize(hosted.private(hosted.objective, **hosted.named), n_trials=n)
        return study


def drawn(path):
    """How many events a vault holds."""
    return len(rows(path, "SELECT * FROM privbo_events"))


@pytest.fixture(params=[
    s if s in ("records", "rewards") else pytest.param(s, marks=pytest.mark.soak)
    for s in ON_STUDIES
])  # fmt: skip
def scene(request, tmp_path, study_tables):
    """For one system of each kind of ledger; every system notices a vault that was put back."""
    return Scene(tmp_path, request.param)


LIVES, BEGUN_AGAIN = "what went on lives", "it was begun again"
CRASHED = "its host was begun again"

PUT_BACK = [
    *((system, "optuna", when) for system in STUDIES for when in (LIVES, BEGUN_AGAIN)),
    *((system, "ray", when) for system in ("records", "persons", "outside", "rewards", "duets")
      for when in (LIVES, CRASHED, BEGUN_AGAIN)),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:ray.*")
@pytest.mark.parametrize(("system", "host", "when"), PUT_BACK)
def test_a_vault_that_was_put_back_is_refused(system, host, when, tmp_path, local_hosts):
    """However often one asks, and nothing more is drawn."""
    path, backup = tmp_path / "vault.db", tmp_path / "backup.db"
    run = begin(system, host, tmp_path, vault=True)
    run.trials(2)
    shutil.copy(path, backup)
    shown = run.trials(1)
    for _ in range(3):
        if when == CRASHED:
            crash(host_name(run.search))
        elif when == BEGUN_AGAIN:
            if host == "ray":  # on another cluster: what the search has kept is all that is left
                end_host(run.search)
                local_hosts.forget()
            run.reopen()
        shutil.copy(backup, path)
        before = drawn(path)
        try:
            shown += run.trials(1, caught=True)
        except VaultError as error:
            run.errors.append(error)
        assert "older backup" in str(run.errors.pop())
        assert drawn(path) == before
    assert [value for value in shown if value is not None] == shown[:1]
    if host == "optuna":
        assert all(trial.state.is_finished() for trial in run.study.trials), "none seems to run"


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


def test_workers_on_two_copies_of_a_vault_do_not_both_go_on(scene):
    scene.run(2)
    copy = scene.folder / "copy.db"
    shutil.copy(scene.vault, copy)
    scene.run(1, copy)  # whoever comes second finds what the first one has shown
    with pytest.raises(VaultError, match=r"older backup|copy"):
        scene.run(1)


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
