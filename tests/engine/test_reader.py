"""What a session does where following its run is interrupted, or its vault was set back."""

import shutil

import pytest

from privbo_plugins.algorithms.dp_gibo import GIBOConfig
from privbo_plugins.errors import VaultError
from privbo_plugins.store.vault import open_vault

from .helpers import cube, open_session, quadratic, tell

pytestmark = pytest.mark.filterwarnings("ignore::privbo_plugins.errors.UtilityWarning")
CONFIG = GIBOConfig(mu=1.0, n_steps=3, n_starts=2)


@pytest.mark.parametrize("after", [0, 1, 4, 9])
def test_a_process_that_is_interrupted_while_it_follows_begins_anew(after, tmp_path, monkeypatch):
    """Whatever part of the log it had learnt, it learns each release once."""
    losses, _ = quadratic(40, 2, 0)
    vault = f"sqlite:///{tmp_path / 'vault.db'}"
    first = open_session(CONFIG, cube(2), vault=open_vault(vault))
    second = open_session(CONFIG, cube(2), vault=open_vault(vault))
    second.set_space(cube(2))
    for i in range(9):
        tell(first, f"t{i}", losses)
    second.refresh() if after == 0 else None
    observe, seen = type(first._known()).observe, []

    def interrupted(self, release):
        observe(self, release)
        seen.append(release)
        if len(seen) > after:
            raise KeyboardInterrupt

    tell(first, "t9", losses)
    with monkeypatch.context() as patch:
        patch.setattr(type(first._known()), "observe", interrupted)
        with pytest.raises(KeyboardInterrupt):
            second.refresh()
    second.refresh()
    assert second._known().algorithm.state_dict() == first._known().algorithm.state_dict()
    assert second._known().values == first._known().values


def test_a_vault_that_was_set_back_is_refused_where_no_host_guards_the_run(tmp_path):
    losses, _ = quadratic(40, 2, 0)
    path, backup = tmp_path / "vault.db", tmp_path / "backup.db"
    session = open_session(CONFIG, cube(2), vault=open_vault(f"sqlite:///{path}"))
    for i in range(3):
        tell(session, f"t{i}", losses)
    session.run.vault.close()
    shutil.copy(path, backup)
    for i in range(3, 6):
        tell(session, f"t{i}", losses)
    session.run.vault.close()
    shutil.copy(backup, path)
    with pytest.raises(VaultError):
        session.enter("t5")
    with pytest.raises(VaultError):
        tell(session, "t5", losses)
