"""Files that are written whole: none of them replaces or follows a symbolic link.

A guard that replaced a link would leave the file behind it as it was, and a worker at that file
would take a vault that was set back for the one that it knows.
"""

import ast
import shutil
from pathlib import Path

import numpy as np
import pytest

from privbo_plugins.algorithms.po_gp_ucb.exchange import write_answers, write_request
from privbo_plugins.cli import main
from privbo_plugins.cli.federation import _invite
from privbo_plugins.errors import VaultError
from privbo_plugins.federation import FederatedServer
from privbo_plugins.sessions.answer_file import AnswerFile
from privbo_plugins.sessions.rows import Curator
from privbo_plugins.store.rollback_guard import FileRollbackGuard
from privbo_plugins.store.run import begin_or_join
from privbo_plugins.store.vault import open_vault
from tests.engine.test_cli import LINE, PAIR, records
from tests.engine.test_rollback_guard import opened

ROOT = Path(__file__).resolve().parents[2]


def curator(folder):
    X = np.linspace(18.0, 90.0, 20)[:, None]
    made = Curator(
        X, epsilon=4, delta=1e-6, bounds=[(18, 90)], outcomes=-abs(X[:, 0] - 50),
        vault=f"sqlite:///{folder}/curator.db",
    )  # fmt: skip
    made.release()
    return made


def rollback_guard(path):
    run = begin_or_join(open_vault(f"sqlite:///{path.parent}/vault.db"), "run", {})
    run.guarded_by(FileRollbackGuard(path, run))


def answers_of_a_curator(path):
    made = curator(path.parent)
    told = AnswerFile(path, made)
    made.evaluate(3)
    told.write()


def command(*typed):
    def write(path):
        url = f"sqlite:///{path.parent}/vault.db"
        records(url)
        if main([*typed, "--vault", url, "--out", str(path)]):
            raise OSError("Refused.")

    return write


def invitation(path):
    server = FederatedServer(PAIR, space=LINE, vault=f"sqlite:///{path.parent}/server.db")
    try:
        server.listen(("127.0.0.1", 0))
        _invite(server, path.parent, None)
    finally:
        server.close()


WRITERS = {
    "a guard": ("guard.json", rollback_guard),
    "a request": ("request.json", lambda path: write_request(path, "digest", [1, 2])),
    "answers": ("answers.json", lambda path: write_answers(path, "digest", {1: 0.5}, {})),
    "a curator's answers": ("answers.json", answers_of_a_curator),
    "a table": ("table.npz", lambda path: curator(path.parent).release().save(path)),
    "a table for others": (
        "table.parquet",
        lambda path: curator(path.parent).release().save(path),
    ),
    "a certificate": ("certificate.json", command("certificate")),
    "a certificate for people": ("certificate.md", command("certificate")),
    "a report": ("report.html", command("report")),
    "an invitation": ("agent-1.invitation", invitation),
}


@pytest.mark.parametrize("which", WRITERS)
def test_a_link_is_neither_replaced_nor_followed(which, tmp_path):
    name, write = WRITERS[which]
    behind, first, second = (tmp_path / part for part in ("behind", "first", "second"))
    for folder in (behind, first, second):
        folder.mkdir()
    file, link = first / name, second / name
    write(file)
    assert file.is_file()

    (behind / name).write_bytes(before := file.read_bytes())
    link.symlink_to(behind / name)
    with pytest.raises((OSError, VaultError)):
        write(link)
    assert link.is_symlink()
    assert (behind / name).read_bytes() == before
    assert list(behind.iterdir()) == [behind / name]


@pytest.mark.parametrize("which", WRITERS)
def test_a_folder_may_be_a_link(which, tmp_path):
    name, write = WRITERS[which]
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    write(tmp_path / "link" / name)
    assert (tmp_path / "folder" / name).is_file()


@pytest.mark.parametrize("whole", [True, False])
def test_a_witness_at_a_link_lets_no_worker_draw_twice(whole, tmp_path):
    """What the link's worker shows, the worker at the file itself must know."""
    vault, file, link = tmp_path / "vault.db", tmp_path / "guard.json", tmp_path / "link.json"
    opened(vault, file).release("0", 0.5, "Jane", -1.0)
    shutil.copyfile(vault, tmp_path / "backup.db")
    link.symlink_to(file if whole else file.name)
    with pytest.raises(VaultError, match="symbolic link: give the path of the file itself"):
        opened(vault, link)
    link.unlink()
    session = opened(vault, file)
    link.symlink_to(tmp_path / "nothing")
    with pytest.raises(VaultError, match="symbolic link"):
        FileRollbackGuard(link, session.run)

    session.release("1", 0.5, "Joe", -1.0)
    shutil.copyfile(tmp_path / "backup.db", vault)
    with pytest.raises(VaultError, match="restored from an older backup"):
        opened(vault, file)


ELSEWHERE = {
    "raytune_searchers/_search.py": "a checkpoint at a path of Tune's own",
    "privbo_plugins/federation/identity.py": "a secret that is linked, and never replaced",
}


def writes(tree):
    """Calls that put a whole file at a path."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
            if node.func.attr in ("write_text", "write_bytes") or (
                of == "os" and node.func.attr in ("replace", "rename", "link")
            ):
                yield node.func.attr


def test_whoever_writes_a_file_whole_asks_the_one_function():
    packages = "privbo_plugins", "optuna_samplers", "raytune_searchers", "sklearn_search"
    found = {
        str(path.relative_to(ROOT))
        for package in packages
        for path in (ROOT / package).rglob("*.py")
        if list(writes(ast.parse(path.read_text())))
    }
    assert found == {"privbo_plugins/files.py", *ELSEWHERE}
