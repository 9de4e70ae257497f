"""One host for one run: who may begin it, and what is said where it is not what it was."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray", reason="Ray is not installed (the ray extra)")

import ray

from privbo_plugins.errors import PrivacyError, VaultError
from raytune_searchers import DPGIBOSearch
from raytune_searchers._channel import LossChannel
from tests.raytune_searchers.runs import RECORDS, begun, make_search, told

pytestmark = pytest.mark.usefixtures("local_hosts")


def test_a_host_that_is_begun_again_does_not_begin_another_ledger(tmp_path: Path) -> None:
    path = tmp_path / "vault.db"
    search = begun(make_search(vault=f"sqlite:///{path}"))
    told(search, "a")
    path.unlink()
    ray.kill(search._anchor.actor)
    with pytest.raises(VaultError, match=r"not where it was|no such table"):  # new host, or old
        search._call("ask", "b", False)
    search._anchor.end()


def test_another_vault_in_its_place_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "vault.db"
    search = begun(make_search(vault=f"sqlite:///{path}"))
    told(search, "a")
    path.unlink()
    make_search(vault=f"sqlite:///{path}")
    search._anchor.end()
    with pytest.raises(VaultError, match="gone"):
        search._call("ask", "b", False)


def test_a_vault_that_was_set_back_under_a_living_host_is_noticed(tmp_path: Path) -> None:
    path, backup = tmp_path / "vault.db", tmp_path / "backup.db"
    search = begun(make_search(vault=f"sqlite:///{path}"))
    told(search, "a")
    shutil.copy(path, backup)
    told(search, "b")
    shutil.copy(backup, path)
    with pytest.raises(VaultError, match="set back"):
        search._call("ask", "c", False)
    search._anchor.end()


def test_a_vault_that_was_set_back_between_two_processes_is_noticed(tmp_path: Path) -> None:
    path, backup = tmp_path / "vault.db", tmp_path / "backup.db"
    search = begun(make_search(vault=f"sqlite:///{path}"))
    told(search, "a")
    shutil.copy(path, backup)
    told(search, "b")
    search.save(str(tmp_path / "state"))
    search._anchor.end()
    shutil.copy(backup, path)
    later = DPGIBOSearch(1, metric="loss", mode="min", vault=f"sqlite:///{path}")
    later.restore(str(tmp_path / "state"))
    with pytest.raises(VaultError, match="set back"):
        later._call("ask", "c", False)


def test_reading_does_not_disturb_a_run(tmp_path: Path) -> None:
    search = begun(make_search(vault=f"sqlite:///{tmp_path / 'vault.db'}"))
    told(search, "a")
    search.save_to_dir(str(tmp_path), "session")
    out = search.suggest("b")
    reader = DPGIBOSearch.from_experiment(tmp_path)
    assert reader.guarantee().protected
    assert search._call("give_back", frozenset()) == ["b"]  # it was out until now
    assert isinstance(out, dict)
    search.close()


def test_another_searchers_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "searcher-state-1.pkl").write_bytes(ray.cloudpickle.dumps({"a": 1}))
    with pytest.raises(ValueError, match="holds no experiment of DPGIBOSearch"):
        DPGIBOSearch.from_experiment(tmp_path)


def test_a_small_inline_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "RAY_max_direct_call_object_size", "1000")
    sent: list[Any] = []
    with pytest.raises(PrivacyError, match="object store"):
        LossChannel(lambda *args: (None, sent.append(args))).tell("a", np.zeros(1), RECORDS)
    assert sent == []


def test_a_host_knows_its_operations_only() -> None:
    search = begun(make_search())
    search.suggest("a")
    with pytest.raises(ValueError, match="no operation"):
        search._call("_session")
    search.close()
