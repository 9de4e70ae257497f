"""The vault: transactions, secrecy of what was deleted, and several workers."""

import gc
import logging
import os
import pickle
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
from contextlib import ExitStack, closing, nullcontext, suppress
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from privbo_plugins.errors import PrivacyWarning, VaultError
from privbo_plugins.privacy.ledger import Charge
from privbo_plugins.store import transaction, vault_file
from privbo_plugins.store import vault as vault_module
from privbo_plugins.store.log import Event
from privbo_plugins.store.tables import SCHEMA
from privbo_plugins.store.transaction import Transaction
from privbo_plugins.store.vault import as_handle, handle_of, open_vault, resolve_url
from tests.inside import cursor_of, engine_of, lock_of

from .helpers import Crash, altered, everything_in, in_threads

SECRET = np.array([0.123456789012345, 2.718281828459045, -9.87654321e-5] * 400)
"""Values whose eight bytes would not turn up by chance."""


@pytest.fixture(params=["memory", "file", "postgres"])
def vault(request, path):
    if request.param == "postgres":
        opened = open_vault(request.getfixturevalue("postgres_database"))
    else:
        opened = open_vault(None if request.param == "memory" else f"sqlite:///{path}")
    yield opened
    opened.close()


def begin(vault, run_id="run"):
    with vault.transaction(run_id) as tx:
        tx.new_run(f"host-{run_id}", {"a": 1})
    return vault


def put(vault, trial, y, run_id="run"):
    with vault.transaction(run_id) as tx:
        tx.put_losses(trial, y)


def traces(folder, y):
    """How many distinct values of y have their float64 bytes somewhere in the folder's files."""
    content = everything_in(folder)
    return sum(v.tobytes() in content for v in np.unique(y))


# Other versions -----------------------------------------------------------------------------


def tables_of(url):
    """Every row of every table."""
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        names = sa.inspect(connection).get_table_names()
        rows = {name: connection.execute(sa.text(f"SELECT * FROM {name}")) for name in names}
        found = {name: sorted(map(tuple, told), key=repr) for name, told in rows.items()}
    engine.dispose()
    return found


OTHER_VERSIONS = {
    "later": (f'UPDATE privbo_identity SET "schema" = {SCHEMA + 1}', "DROP TABLE privbo_board"),
    "earlier": (f'UPDATE privbo_identity SET "schema" = {SCHEMA - 1}', "DROP TABLE privbo_events"),
    "without an identity": ("DROP TABLE privbo_identity", "DROP TABLE privbo_events"),
}


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("version", OTHER_VERSIONS)
def test_a_vault_of_another_version_is_refused_and_left_as_it_is(
    url, version, create, monkeypatch
):
    begin(open_vault(url)).close()
    altered(url, *OTHER_VERSIONS[version])
    before = tables_of(url)
    monkeypatch.delattr(vault_module, "_pause")  # a second look would change nothing
    with pytest.raises(VaultError, match="another version of privbo-plugins"):
        open_vault(url, create=create)
    assert tables_of(url) == before


def test_a_number_that_no_version_has_written_is_not_repeated(path):
    url = f"sqlite:///{path}"
    begin(open_vault(url)).close()
    altered(url, "UPDATE privbo_identity SET schema = 'Jane'")
    with pytest.raises(VaultError) as told:
        open_vault(url)
    assert "Jane" not in str(told.value)


# Runs and first writes ----------------------------------------------------------------------


def test_a_run_keeps_its_settings_and_frozen_facts(vault):
    begin(vault)
    with vault.transaction("run") as tx:
        assert (tx.settings(), tx.frozen()) == ({"a": 1}, {})
        tx.freeze({"n": 7})
    with vault.transaction("run") as tx:
        assert (tx.settings(), tx.frozen()) == ({"a": 1}, {"n": 7})
        assert tx.run_of_host("host-run") == "run"
        assert tx.run_of_host("other") is None
    with vault.transaction("nobody") as tx:
        assert tx.settings() is None
    with pytest.raises(VaultError), vault.transaction("run") as tx:
        tx.freeze({"n": 8})
    with vault.transaction("run") as tx:
        tx.freeze({"m": 1})
        assert (tx.settings(), tx.frozen()) == ({"a": 1}, {"n": 7, "m": 1})


def begins(tx, more):
    tx.run_id = f"run{more}"
    tx.new_run("host", {"a": more})


FIRST_WRITES = {
    "run": begins,
    "losses": lambda tx, more: tx.put_losses("t", SECRET + more),
    "charge": lambda tx, more: tx.charge(Charge("value", "1", 0.3 + more, 0.1, 0.2)),
    "release": lambda tx, more: tx.release("value", "7", {"values": [more]}),
}


@pytest.mark.parametrize("what", FIRST_WRITES)
def test_what_was_written_first_stays(vault, what):
    found = []
    begin(vault)
    for more in (0.0, 1.0):
        with pytest.raises(VaultError) if more else nullcontext(), vault.transaction("run") as tx:
            FIRST_WRITES[what](tx, more)
        with vault.transaction("run") as tx:
            losses = [next(tx.blocks([trial], len(SECRET))).tolist() for trial in tx.held()]
            told = tx.charges(), tx.releases_after(0), tx.released("value", "7")
            found.append((tx.hosts(), tx.run_of_host("host"), losses, *told))
    assert found[0] == found[1]


def test_releases_are_counted_and_read_from_any_place_on(vault):
    begin(vault)
    with vault.transaction("run") as tx:
        tx.release("value", "7", {"values": [0.5]})
        tx.release("gradient", "7", {"values": [1.0]})
        (first, *_), (second, *_) = tx.releases_after(0)
        assert tx.n_released() == 2
        assert [r[:3] for r in tx.releases_after(first)] == [(second, "gradient", "7")]


def test_a_handler_of_a_signal_cannot_end_the_transaction_that_it_interrupts(vault):
    """In memory it rolled back the charge of a release that was then published."""
    begin(vault)
    with vault.transaction("run") as tx:
        tx.charge(Charge("value", "1", 0.3, 0.1, 0.2))
        with pytest.raises(VaultError, match="this very thread"), vault.transaction("run"):
            pass
        tx.release("value", "1", {"values": [0.5]})
    with vault.transaction("run") as tx:
        assert [charge.key for charge in tx.charges()] == ["1"]
        assert tx.released("value", "1") == {"values": [0.5]}


def test_what_was_rolled_back_under_way_is_not_committed():
    vault = open_vault()
    begin(vault)

    def write():
        with vault.transaction("run") as tx:
            tx.charge(Charge("value", "1", 0.3, 0.1, 0.2))
            cursor_of(tx).connection.rollback()

    with pytest.raises(VaultError, match="somebody else"):
        write()


def test_the_life_of_a_trial(vault):
    begin(vault)
    x = np.array([0.25, 1 / 3])
    with vault.transaction("run") as tx:
        tx.new_trial("a", "step", 3, 0, x)
        tx.new_trial("b", "step", 3, 1, x)
        tx.fail("b")
        tx.finish("a", x + 0.1, 0.5)
        tx.fail("a")  # too late: it is done
        found = [(row.trial, row.slot, row.state) for row in tx.trials(step=3)]
        assert found == [("a", 0, "done"), ("b", 1, "failed")]
        row = tx.trial("a")
        assert (row.role, row.step, row.slot, row.state, row.value) == ("step", 3, 0, "done", 0.5)
        assert np.array_equal(row.x, x + 0.1)
        assert [tx.count(state=state) for state in ("done", "failed", "out")] == [1, 1, 0]
        assert tx.count(step=3) == 2
        tx.forget("a")  # only failed trials are forgotten
        tx.forget("b")
        assert tx.trial("b") is None
        assert tx.trial("a") is not None
        assert [(row.trial, row.value) for row in tx.trials()] == [("a", 0.5)]


def test_marks_are_kept_once_by_kind_and_apart_however_long(vault):
    begin(vault)
    first, second = "a" * 600 + "1", "a" * 600 + "2"
    with vault.transaction("run") as tx:
        for text in ("b", "a", "b"):
            tx.mark("note", text)
        assert tx.marks("note") == ("a", "b")
        for text in (first, first):
            tx.mark("unprotected", text)
        assert [tx.has_mark("unprotected", text) for text in (first, second)] == [True, False]
        tx.mark("unprotected", second)
        assert len(tx.marks("unprotected")) == 2
        for text in tx.marks("unprotected"):
            assert len(text) <= 512
            assert text.startswith("a" * 447 + " ")


# Losses -------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 9, 10, 11, 35])
def test_losses_stream_in_blocks(vault, n, monkeypatch):
    monkeypatch.setattr(transaction, "BLOCK", 10)
    Y = np.random.default_rng(0).normal(size=(n, 2))
    Y[0, 0] = np.nan
    for j, trial in enumerate(("u", "v")):
        put(begin(vault, "run") if j == 0 else vault, trial, Y[:, j])
    with vault.transaction("run") as tx:
        blocks = list(tx.blocks(["v", "u"], n))
        assert [len(b) for b in blocks] == [min(10, n - s) for s in range(0, n, 10)]
        assert np.array_equal(np.vstack(blocks), Y[:, ::-1], equal_nan=True)
        assert tx.held() == ["u", "v"]
        tx.drop_losses(["u"])
        assert tx.held() == ["v"]
        with pytest.raises(VaultError, match="no longer holds the losses of trial u"):
            list(tx.blocks(["v", "u"], n))
        tx.drop_losses()
        assert tx.held() == []


def test_purging_one_run_leaves_the_others(vault):
    for run in ("run", "other"):
        put(begin(vault, run), "t", SECRET, run)
    with vault.transaction("run") as tx:
        tx.drop_losses()
    with vault.transaction("other") as tx:
        assert tx.held() == ["t"]


@pytest.mark.parametrize("dropped", [None, [0, 1, 2, 3], [1, 3]], ids=str)
def test_nothing_of_deleted_losses_stays_in_the_file(path, dropped):
    vault, full = begin(open_vault(f"sqlite:///{path}")), len(np.unique(SECRET))
    for j in range(4):
        put(vault, f"t{j}", SECRET + j)
    assert traces(path.parent, SECRET) == full
    with vault.transaction("run") as tx:
        tx.drop_losses(None if dropped is None else [f"t{j}" for j in dropped])
    gone = range(4) if dropped is None else dropped
    left = [0 if j in gone else full for j in range(4)]
    assert [traces(path.parent, SECRET + j) for j in range(4)] == left
    vault.close()
    assert [traces(path.parent, SECRET + j) for j in range(4)] == left
    later = open_vault(f"sqlite:///{path}")
    assert later.vault_id == vault.vault_id
    with later.transaction("run") as tx:
        assert tx.held() == [f"t{j}" for j in range(4) if j not in gone]
        tx.drop_losses()
    later.close()
    assert [traces(path.parent, SECRET + j) for j in range(4)] == [0] * 4


@pytest.mark.parametrize("error", [ValueError, Crash])
def test_a_rolled_back_transaction_keeps_nothing(vault, path, error):
    begin(vault)
    with pytest.raises(error), vault.transaction("run") as tx:  # noqa: PT012
        tx.put_losses("t", SECRET)
        tx.new_trial("t", "step", 0, 0, SECRET[:2])
        tx.charge(Charge("value", "t", 0.1, 1.0, 1.0))
        tx.release("value", "t", {})
        raise error
    with vault.transaction("run") as tx:
        assert tx.held() == []
        assert tx.charges() == []
        assert tx.trial("t") is None
        assert tx.n_released() == 0
    if path.exists():
        assert traces(path.parent, SECRET) == 0


# Files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_file_that_others_can_read_gives_a_warning(path, mode):
    open_vault(f"sqlite:///{path}").close()
    path.chmod(mode)
    with pytest.warns(PrivacyWarning, match="chmod 600"):
        open_vault(f"sqlite:///{path}").close()
    path.chmod(0o600)
    open_vault(f"sqlite:///{path}").close()  # a warning would be an error here


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_a_journal_left_by_a_transaction_is_not_readable_by_others(path, umask):
    before = os.umask(umask)
    try:
        vault = begin(open_vault(f"sqlite:///{path}"))
        with vault.transaction("run") as tx:
            tx.put_losses("t", SECRET)
            modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in path.parent.iterdir()}
    finally:
        os.umask(before)
    assert len(modes) == 2
    assert set(modes.values()) == {0o600}


def owned_by_another(path):
    """Makes a file somebody else's than the user that a test pretends to be; whose it is."""
    owner = os.geteuid() or 4321
    os.chown(path, owner, -1)
    return owner


@pytest.mark.parametrize("create", [True, False])
def test_a_file_of_another_user_is_refused(path, create, monkeypatch):
    open_vault(f"sqlite:///{path}").close()
    owner = owned_by_another(path)
    monkeypatch.setattr(vault_file.os, "geteuid", lambda: owner + 1)
    with pytest.raises(VaultError, match=f"belongs to another user .uid {owner}.*own"):
        open_vault(f"sqlite:///{path}", create=create)


def test_root_is_warned_of_a_file_of_another_user(path, monkeypatch):
    open_vault(f"sqlite:///{path}").close()
    owner = owned_by_another(path)
    monkeypatch.setattr(vault_file.os, "geteuid", lambda: 0)
    with pytest.warns(PrivacyWarning, match=f"belongs to another user .uid {owner}") as caught:
        open_vault(f"sqlite:///{path}").close()
    assert caught[0].filename == __file__


@pytest.mark.parametrize("create", [True, False])
def test_a_link_to_nothing_is_refused_and_nothing_is_made_where_it_points(path, create):
    path.symlink_to(path.parent / "elsewhere.db")
    with pytest.raises(VaultError, match="link to a file that does not exist"):
        open_vault(f"sqlite:///{path}", create=create)
    assert not (path.parent / "elsewhere.db").exists()


def test_a_link_to_a_vault_is_that_vault(path):
    first = open_vault(f"sqlite:///{path}")
    (path.parent / "link.db").symlink_to(path)
    assert open_vault(f"sqlite:///{path.parent}/link.db").vault_id == first.vault_id


def test_what_is_no_plain_file_is_refused_without_waiting_for_it(path):
    os.mkfifo(path, 0o600)
    with pytest.raises(VaultError, match="no plain file"):
        open_vault(f"sqlite:///{path}")


def test_a_file_that_goes_away_in_mid_run_does_not_come_back_without_its_ledger(path):
    vault = begin(open_vault(f"sqlite:///{path}"))
    path.unlink()
    with pytest.raises(VaultError, match="unable to open"), vault.transaction("run"):
        pass
    assert list(path.parent.iterdir()) == []


def test_an_empty_file_is_waited_for_and_then_refused(path, monkeypatch):
    """It is being created, or it was cut: then everything would be released anew."""
    path.touch(0o600)
    monkeypatch.setattr(vault_file, "_PATIENCE", 0.05)
    with pytest.raises(VaultError, match="is empty"):
        open_vault(f"sqlite:///{path}")
    assert path.stat().st_size == 0
    monkeypatch.setattr(vault_file, "_PATIENCE", 60.0)
    content = path.parent / "other.db"
    identity = open_vault(f"sqlite:///{content}").vault_id
    later = threading.Timer(0.1, lambda: path.write_bytes(content.read_bytes()))
    later.start()
    assert open_vault(f"sqlite:///{path}").vault_id == identity
    later.join()


# Changed by hand -----------------------------------------------------------------------------


def test_losses_that_another_program_made_a_text_are_not_quoted(path):
    vault = begin(open_vault(f"sqlite:///{path}"))
    put(vault, "t", np.frombuffer(b"Jane\xe5Doe" * 4))
    altered(f"sqlite:///{path}", "UPDATE privbo_losses SET data = CAST(data AS TEXT)")
    with pytest.raises(VaultError) as told, vault.transaction("run") as tx:
        next(tx.blocks(["t"], 4))
    assert "Jane" not in str(told.value)
    assert told.value.__suppress_context__


@pytest.mark.parametrize("change", [
    "UPDATE privbo_identity SET vault_id = 'another'", "DELETE FROM privbo_identity",
    "DELETE FROM privbo_events WHERE kind = 'vault'",
    "UPDATE privbo_events SET key = 'another' WHERE kind = 'vault'",
])  # fmt: skip
def test_another_identity_than_the_log_began_with_is_damage(path, change, monkeypatch):
    """It salts the users' names: under another one each of them would have a new budget."""
    monkeypatch.setattr(vault_module, "_pause", lambda _: None)
    begin(open_vault(f"sqlite:///{path}"))
    altered(f"sqlite:///{path}", change)
    with pytest.raises(VaultError, match="never stored"):
        open_vault(f"sqlite:///{path}")


def test_a_fact_under_another_name_changes_none_that_was_fixed(vault):
    begin(vault)
    with vault.transaction("run") as tx:
        tx.freeze({"mode": "private"})
        tx.append(Event("run", "frozen", "again", payload='{"mode": "plain"}'))
        assert (tx.settings(), tx.frozen()) == ({"a": 1}, {"mode": "private", "again": None})


@pytest.mark.parametrize("cost", ["[NaN, 0.0]", "[-2.0, 0.0]", "[2.0]", '["2", 0.0]', "2.0", "{"])
def test_a_charge_that_no_budget_would_refuse_is_damage(vault, cost):
    begin(vault)
    with vault.transaction("run") as tx:
        tx.append(Event("run", "paid", "t", "Jane", cost))
    for read in (Transaction.evaluations, lambda tx: tx.evaluation_counts("Jane")):
        with pytest.raises(VaultError, match="never stored"), vault.transaction("run") as tx:
            read(tx)


# Write-ahead mode ---------------------------------------------------------------------------


def switched_to_wal(path):
    """What a database browser does: the file stays in this mode after it is closed."""
    tool = sqlite3.connect(path, isolation_level=None)
    assert tool.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)
    tool.execute("SELECT count(*) FROM privbo_events").fetchone()
    return tool


def test_nothing_of_deleted_losses_stays_in_a_write_ahead_log(path, monkeypatch):
    monkeypatch.setattr(vault_module.time, "sleep", lambda _: None)
    vault = begin(open_vault(f"sqlite:///{path}"))
    put(vault, "before", SECRET)
    with closing(switched_to_wal(path)):
        for work in (lambda: put(vault, "t", SECRET + 1), lambda: open_vault(vault.handle)):
            with pytest.raises(VaultError, match=r"write-ahead mode.*Close that program"):
                work()
        assert traces(path.parent, SECRET + 1) == 0  # nothing was written
    with vault.transaction("run") as tx:  # no tool has it open any more: it is switched back
        assert cursor_of(tx).execute("PRAGMA journal_mode").fetchone() == ("delete",)
        tx.put_losses("t", SECRET + 1)
        assert {p.name for p in path.parent.iterdir()} == {path.name, f"{path.name}-journal"}
    with vault.transaction("run") as tx:
        tx.drop_losses()
    assert [traces(path.parent, SECRET + j) for j in range(2)] == [0, 0]
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_log_that_a_crashed_tool_left_is_written_back_and_removed(path):
    vault = begin(open_vault(f"sqlite:///{path}"))
    put(vault, "t", SECRET)
    crashed = path.parent / "crashed"
    crashed.mkdir()
    with closing(switched_to_wal(path)) as tool:
        tool.execute("PRAGMA secure_delete=ON")
        tool.execute("UPDATE privbo_losses SET data = zeroblob(length(data))")
        for file in path.parent.glob("private.db*"):
            shutil.copy(file, crashed)
    assert traces(crashed, SECRET) > 0  # the control: its log has not been written back
    later = open_vault(f"sqlite:///{crashed}/private.db")
    with later.transaction("run") as tx:
        assert not next(tx.blocks(["t"], len(SECRET))).any()
    assert traces(crashed, SECRET) == 0
    assert [p.name for p in crashed.iterdir()] == ["private.db"]


# Power losses -------------------------------------------------------------------------------


def large_release(tx):
    """So large that SQLite writes pages into the database before the commit."""
    tx.charge(Charge("value", "7", 0.3, 0.1, 0.2))
    tx.release("value", "7", {"values": [0.5]})
    tx.put_losses("t", np.resize(SECRET, 600_000))


def contents(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def put_back(files, folder):
    """What an interrupted system leaves, and nothing else; the vault's path."""
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o600)
    return folder / "private.db"


@pytest.fixture
def alone(tmp_path):
    """A vault's path in a folder of its own."""
    (tmp_path / "vault").mkdir()
    return tmp_path / "vault" / "private.db"


def test_a_transaction_that_a_power_loss_interrupted_leaves_no_trace(alone, tmp_path):
    vault = begin(open_vault(f"sqlite:///{alone}"))
    before = alone.read_bytes()
    with vault.transaction("run") as tx:
        large_release(tx)
        torn = contents(alone.parent)
    assert set(torn) == {"private.db", "private.db-journal"}
    assert torn["private.db"] != before  # only the journal can undo it
    path = put_back(torn, tmp_path / "later")
    later = open_vault(f"sqlite:///{path}")
    assert contents(path.parent) == {"private.db": before}
    with later.transaction("run") as tx:
        assert (tx.charges(), tx.releases_after(0), tx.held()) == ([], [], [])
        large_release(tx)
    with pytest.raises(VaultError), later.transaction("run") as tx:
        large_release(tx)


PUBLISHES = """
import os, sys
from privbo_plugins.store.vault import open_vault
vault = open_vault(sys.argv[1])
with vault.transaction("run") as tx:
    tx.new_run("host", {})
    tx.release("value", "7", {"values": [0.5]})
os.write(1, b"published")
"""


def strace():
    """The tracer's path, where there is one and the system lets it trace."""
    found = shutil.which("strace")
    if found is None:
        pytest.skip("strace is not installed: what reaches the disk in which order is not seen")
    tried = subprocess.run([found, "-o", os.devnull, "true"], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip("this system lets nobody trace system calls")
    return found


def test_the_directory_is_synced_after_the_journal_is_removed_and_before_publishing(
    alone, tmp_path
):
    log = tmp_path / "calls"
    command = [strace(), "-f", "-y", "-e", "trace=fsync,fdatasync,unlink,unlinkat,write",
               "-o", str(log), sys.executable, "-c", PUBLISHES, f"sqlite:///{alone}"]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    calls = log.read_text().splitlines()
    published = next(i for i, call in enumerate(calls) if "published" in call)
    removed = max(
        i for i, call in enumerate(calls[:published]) if "unlink" in call and "-journal" in call
    )
    synced = [call for call in calls[removed:published] if "sync(" in call]
    assert any(f"<{alone.parent}>)" in call for call in synced)


def test_every_connection_syncs_the_directory_and_overwrites_what_it_deletes(path, monkeypatch):
    vault = begin(open_vault(f"sqlite:///{path}"))
    wanted = {"synchronous": 3, "secure_delete": 1, "journal_mode": "delete", "temp_store": 2}

    def found(cursor):
        return {name: cursor.execute(f"PRAGMA {name}").fetchone()[0] for name in wanted}

    for opened in (
        vault,
        open_vault(vault.handle, create=False),
        pickle.loads(pickle.dumps(vault)),
    ):
        with opened.transaction("run") as tx:
            assert found(cursor_of(tx)) == wanted
        with closing(engine_of(opened).raw_connection()) as connection:
            assert found(connection.cursor()) == wanted
    monkeypatch.setattr(vault_module.os, "getpid", lambda: -1)
    with vault.transaction("run") as tx:
        assert found(cursor_of(tx)) == wanted


@pytest.mark.parametrize("where", ["memory", "file"])
def test_a_vault_that_is_forgotten_has_closed_its_connections(where, path):
    vault = begin(open_vault(None if where == "memory" else f"sqlite:///{path}"))
    with vault.transaction("run") as tx:
        connection = cursor_of(tx).connection
    del tx, vault
    gc.collect()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("length", [0, 1, 99, 512, 4096, 20_000, 20_480, -4096, -512, -1])
def test_a_file_whose_end_is_lost_is_refused(path, length, create, monkeypatch):
    monkeypatch.setattr(vault_module.time, "sleep", lambda _: None)
    monkeypatch.setattr(vault_file, "_PATIENCE", 0.01)
    with begin(open_vault(f"sqlite:///{path}")).transaction("run") as tx:
        tx.release("value", "7", {"values": [0.5]})
    left = path.read_bytes()[:length]
    path.write_bytes(left)
    for _ in range(2):
        with pytest.raises(VaultError):
            open_vault(f"sqlite:///{path}", create=create)
    assert path.read_bytes() == left


@pytest.mark.filterwarnings("ignore::privbo_plugins.errors.PrivacyWarning")
@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize(
    ("handle", "why"),
    [
        ("sqlite:///{}/missing/private.db", "cannot be created|no vault file"),
        ("{}", "no plain file"), ("{}/notes.txt", "no SQLite database"),
        ("postgresql://nobody:hunter2@127.0.0.1:1/none", "vault"), ("nosuchdb://host/db", "vault"),
        *((handle, "vault must be None") for handle in (
            "", "nonsense", "Memory", "://", "sqlite:private.db", "postgresql:u:hunter2@host/db",
            "ENV:V.DB",
        )),
    ],
)  # fmt: skip
def test_an_unusable_vault_is_refused_without_its_contents(
    handle, why, create, tmp_path, monkeypatch
):
    monkeypatch.setattr(vault_module.time, "sleep", lambda _: None)
    monkeypatch.chdir(tmp_path)
    notes = tmp_path / "notes.txt"
    notes.write_text("Jane Doe, 43\n" * 400)
    notes.chmod(0o600)
    with pytest.raises((VaultError, ValueError), match=why) as caught:
        begin(open_vault(handle.format(tmp_path), create=create))
    assert not any(secret in str(caught.value) for secret in ("Jane", "hunter2"))
    assert os.listdir(tmp_path) == ["notes.txt"]


NAMES = st.text(
    st.characters(exclude_characters="/", exclude_categories=["Cs", "Cc"]), min_size=1
).filter(lambda name: name == name.strip())


@given(st.lists(NAMES, min_size=1, max_size=3), st.booleans())
def test_a_path_is_the_file_of_its_name(names, absolute):
    path = Path(*["/"][: int(absolute)], *names)
    if str(path).startswith("~"):  # somebody's home
        return
    assert resolve_url(path).database == os.path.abspath(path)
    assert handle_of(resolve_url(path)) == as_handle(path) == os.path.abspath(path)
    assert resolve_url(str(as_handle(path))) == resolve_url(path)
    if ":" not in str(path) and len(path.parts) > 1:
        assert resolve_url(str(path)) == resolve_url(path)


@pytest.mark.parametrize("name", ["100%.db", "a%20b.db", "a?b.db", "#1&mode=memory.db", "ä:b.db"])
def test_a_vault_is_the_file_of_its_path_to_the_letter_wherever_the_process_is_later(
    name, tmp_path, monkeypatch
):
    (tmp_path / "later").mkdir()
    monkeypatch.chdir(tmp_path)
    first = open_vault(Path(name))
    pickled = pickle.dumps(first)
    monkeypatch.chdir(tmp_path / "later")
    assert pickle.loads(pickled).vault_id == open_vault(tmp_path / name).vault_id
    assert open_vault(first.handle).vault_id == first.vault_id
    assert [path.name for path in tmp_path.rglob("*.db")] == [name]


@pytest.mark.parametrize("where", ["{}", "{}/", "sqlite:///{}/", "env"])
@pytest.mark.parametrize("name", ["a.db ", " a.db", "a.db\n", "a\x1b.db", "a.db\t", "\na.db"])
def test_a_path_that_seems_to_be_another_is_refused(where, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OUR_VAULT", str(tmp_path / name))
    given = "env:OUR_VAULT" if where == "env" else where.format(tmp_path) + name
    if where == "{}":
        given = f"./{name}"
    with pytest.raises(ValueError, match=r"may hold no .* got one with '.*Give"):
        open_vault(given)
    assert list(tmp_path.iterdir()) == []


def test_a_variable_may_hold_a_path_and_a_handle_is_a_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OUR_VAULT", "sub.db")
    first, again = open_vault("env:OUR_VAULT"), open_vault(Path("sub.db"))
    assert first.vault_id == again.vault_id == pickle.loads(pickle.dumps(again)).vault_id
    assert again.handle == str(tmp_path / "sub.db")
    assert (tmp_path / "sub.db").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("isolation", ["serializable", "repeatable read"])
def test_no_address_or_database_takes_a_transaction_apart(isolation, postgres_database):
    import psycopg

    name = postgres_database.rpartition("/")[2]
    with psycopg.connect(postgres_database.replace("+psycopg", "")) as connection:
        of_database = f"ALTER DATABASE {name} SET default_transaction_isolation"
        connection.execute(f"{of_database} = '{isolation}'")
    vault = begin(open_vault(postgres_database + "?autocommit=true"))
    with suppress(ValueError), vault.transaction("run") as tx:
        tx.put_losses("0", np.ones(3))
        raise ValueError
    with vault.transaction("run") as tx:
        found = []
        for query in ("SELECT count(*) FROM privbo_losses", "SHOW transaction_isolation"):
            cursor_of(tx).execute(query)
            found.append(cursor_of(tx).fetchone())
        assert found == [(0,), ("read committed",)]
    vault.close()


def test_a_password_never_shows_in_the_representation(postgres_database):
    vault = open_vault(postgres_database.replace("tests@", "tests:hunter2@"))
    assert "hunter2" not in repr(vault)
    vault.close()


# Handles ------------------------------------------------------------------------------------


def test_a_handle_of_a_memory_vault_finds_it_while_it_lives():
    vault = begin(open_vault())
    put(vault, "t", SECRET)
    assert open_vault(vault.handle) is vault
    assert pickle.loads(pickle.dumps(vault)) is vault
    assert open_vault("memory") is not vault
    pickled = pickle.dumps(vault)
    assert SECRET[:1].tobytes() not in pickled
    assert len(pickled) < 500
    del vault
    gc.collect()
    with pytest.raises(VaultError, match="with it the ledger"):
        pickle.loads(pickled)


def test_a_pickled_vault_opens_the_same_store(url):
    vault = begin(open_vault(url))
    put(vault, "t", SECRET)
    pickled = pickle.dumps(vault)
    assert SECRET[:1].tobytes() not in pickled
    copy = pickle.loads(pickled)
    assert copy.vault_id == vault.vault_id
    with copy.transaction("run") as tx:
        assert tx.held() == ["t"]
    for opened in (vault, copy):
        opened.close()


def test_a_child_process_cannot_use_a_memory_vault(monkeypatch):
    vault = begin(open_vault())
    monkeypatch.setattr(vault_module.os, "getpid", lambda: -1)
    with (
        pytest.raises(VaultError, match="cannot be shared with a child"),
        vault.transaction("run"),
    ):
        pass


def test_a_child_process_of_a_file_vault_opens_its_own_connections(url, monkeypatch):
    vault = begin(open_vault(url))
    put(vault, "t", SECRET)
    lock, pool_of_parent = lock_of(vault), engine_of(vault).pool
    monkeypatch.setattr(vault_module.os, "getpid", lambda: -1)
    with vault.transaction("run") as tx:
        assert tx.held() == ["t"]
    assert lock_of(vault) is not lock
    assert engine_of(vault).pool is not pool_of_parent
    vault.close()
    pool_of_parent.dispose()


# Several workers ----------------------------------------------------------------------------


@pytest.mark.parametrize("write_ahead", [False, True])
def test_several_workers_that_open_a_store_agree_on_its_identity(url, path, write_ahead):
    """As they create it, and as they take its file back from write-ahead mode."""
    if write_ahead:
        begin(open_vault(url)).close()
        if path.exists():
            switched_to_wal(path).close()
    opened = []
    assert in_threads(5, lambda _: opened.append(open_vault(url))) == []
    assert len({vault.vault_id for vault in opened}) == 1
    for vault in opened:
        vault.close()


# Logs ---------------------------------------------------------------------------------------


def test_no_log_record_carries_data(vault, caplog):
    with ExitStack() as stack:
        for name in (None, "sqlalchemy", "sqlalchemy.engine", "sqlalchemy.pool"):
            stack.enter_context(caplog.at_level(logging.DEBUG, logger=name))
        begin(open_vault())
        put(begin(vault), "t", np.full(3, 0.123456789))
        with pytest.raises(VaultError) as caught:
            put(vault, "t", np.full(3, 0.123456789))
        with vault.transaction("run") as tx:
            list(tx.blocks(["t"], 3))
            tx.new_trial("trial-77", "step", 0, 0, np.full(2, 0.123456789))
            tx.finish("trial-77", np.full(2, 0.123456789), 0.987654321)
            tx.drop_losses()
    text = caplog.text + str(caught.value)
    needle = np.float64(0.123456789).tobytes()
    assert "CREATE TABLE" in text  # the loggers work, and stay silent about rows
    for trace in ("host-run", "0.98765", "0.12345", "trial-77", repr(needle)[2:-1], needle.hex()):
        assert trace not in text
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///:memory:", "sqlite:///file:v.db?uri=true"]
)
def test_a_sqlite_vault_needs_a_plain_path(url, tmp_path):
    """Anything else could be created readable for others, or forget its ledger at once."""
    with pytest.raises(ValueError, match="plain path"):
        open_vault(url)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it is closed late
def test_a_transaction_that_an_interruption_left_behind_bars_nobody(tmp_path):
    """Its traceback and its frames hold each other, as after Ctrl-C between two lines."""
    vault = open_vault(f"sqlite:///{tmp_path}/private.db")
    left = [vault.transaction("")]
    left[0].__enter__()
    left.append(left)
    del left
    with vault.transaction("") as tx:
        assert tx is not None


@pytest.mark.parametrize("create", [True, False])
def test_a_dead_address_is_told_alike_by_whoever_opens_it(create, monkeypatch):
    pytest.importorskip("psycopg")
    monkeypatch.setattr(vault_module.time, "sleep", lambda _: None)
    with pytest.raises(VaultError, match=r"cannot be opened for writing .*reachable"):
        open_vault("postgresql://a:b@127.0.0.1:1/c", create=create)
