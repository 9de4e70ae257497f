"""A file as the guard of a run: it notices what a vault forgot, and is never done without."""

import json
import os
import stat
from pathlib import Path
from threading import Thread

import pytest

from privbo_plugins import files
from privbo_plugins.errors import VaultError
from privbo_plugins.files import LogHead
from privbo_plugins.privacy.local import make_mechanism
from privbo_plugins.privacy.noise import InsecureNoise
from privbo_plugins.sessions.rewards import RewardSession
from privbo_plugins.store.rollback_guard import FileRollbackGuard
from privbo_plugins.store.run import begin_or_join
from privbo_plugins.store.vault import open_vault

from .helpers import cube, open_session, quadratic, tell
from .scenes import at_once
from .test_session import config


@pytest.fixture
def vault(tmp_path):
    return tmp_path / "vault.db"


@pytest.fixture
def file(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    return tmp_path / "elsewhere" / "guard.json"


def opened(vault, file, key="loop"):
    mechanism = make_mechanism(1.0, bound=1.0)
    session = RewardSession(mechanism, open_vault(f"sqlite:///{vault}"), key, user_budget=1.0)
    if file is not None:
        session.run.guarded_by(FileRollbackGuard(file, session.run))
    return session


def run_of(vault):
    return begin_or_join(open_vault(f"sqlite:///{vault}"), "run", {})


# The file ---------------------------------------------------------------------------------------


def test_it_is_begun_for_a_run_that_has_cost_nothing_yet(vault, file):
    """A crash between the run's beginning and its file's ends no run."""
    opened(vault, None)
    opened(vault, file).release("0", 0.5, "Jane", -1.0)
    assert list(opened(vault, file).evaluations()) == ["0"]


@pytest.mark.parametrize("cost", ["charged", "released"])
def test_a_run_that_has_cost_something_is_not_joined_without_its_file(vault, file, cost):
    session = opened(vault, file)
    if cost == "charged":
        session.charge("0", "Jane")  # drawn elsewhere, and perhaps shown
    else:
        session.release("0", 0.5, "Jane", -1.0)
    file.unlink()
    with pytest.raises(VaultError, match=r"does not exist.*put the file back") as refused:
        opened(vault, file)
    assert str(file) in str(refused.value)
    with pytest.raises(VaultError, match="does not exist"):
        session.release("1", 0.5, "Joe", -1.0)
    assert not file.exists()
    assert opened(vault, None).replay("1") is None


def test_a_file_that_is_lost_is_not_begun_anew_by_a_run_of_test_noise_either(vault, file):
    """It is charged like any other, though nothing is claimed for it."""
    losses, _ = quadratic(200, 2, 0)
    made = {"vault": open_vault(f"sqlite:///{vault}"), "noise": InsecureNoise(0)}
    session = open_session(config(mu=1.0), cube(2), **made)
    session.run.guarded_by(FileRollbackGuard(file, session.run))
    tell(session, "a", losses)
    file.unlink()
    with pytest.raises(VaultError, match="does not exist"):
        FileRollbackGuard(file, session.run)


def damaged(change):
    def act(file):
        found = json.loads(file.read_text())
        changed = change(found)
        file.write_text(json.dumps(found if changed is None else changed))

    return act


DAMAGED = {
    "empty": lambda file: file.write_text(""),
    "cut": lambda file: file.write_text(file.read_text()[:-20]),
    "no text": lambda file: file.write_bytes(b"\xff\xfe\x00{}"),
    "deep": lambda file: file.write_text("[" * 200_000),
    "a list": damaged(lambda found: [found]),
    "another format": damaged(lambda found: found.update(format="privbo-guard-2")),
    "no format": damaged(lambda found: found.pop("format") and None),
    "no head": damaged(lambda found: found.pop("n") and None),
    "a head of text": damaged(lambda found: found.update(n="3")),
    "a head below nothing": damaged(lambda found: found.update(n=-1)),
    "no digest": damaged(lambda found: found.update(digest=None)),
    "no places": damaged(lambda found: found.update(places={})),
    "places of numbers": damaged(lambda found: found.update(places=[1])),
    "no run": damaged(lambda found: found.update(run=3)),
    "notes of nothing": damaged(lambda found: found.update(noted=None)),
    "a directory": lambda file: (file.unlink(), file.mkdir()),
}


@pytest.mark.parametrize("how", DAMAGED)
def test_a_damaged_file_is_refused_and_left_as_it_is(how, vault, file):
    session = opened(vault, file)
    session.release("0", 0.5, "Jane", -1.0)
    session.run.mark("host", "a further line")
    DAMAGED[how](file)
    before = file.read_bytes() if file.is_file() else None
    for late in (
        lambda: opened(vault, file),
        lambda: session.release("1", 0.5, "Joe", -1.0),
        lambda: FileRollbackGuard(file, session.run),
    ):
        with pytest.raises(VaultError, match="is damaged, or no guard file") as refused:
            late()
        assert str(file) in str(refused.value)
        assert "put the file back" in str(refused.value)
        assert refused.value.__cause__ is None
    assert (file.read_bytes() if file.is_file() else None) == before
    assert opened(vault, None).replay("1") is None


def test_a_lock_behind_a_link_is_refused(vault, file, tmp_path):
    elsewhere = tmp_path / "behind"
    file.with_name(f".{file.name}.lock").symlink_to(elsewhere)
    with pytest.raises(VaultError, match="cannot be written"):
        opened(vault, file).release("0", 0.5, "Jane", -1.0)
    assert not elsewhere.exists()


def test_a_file_is_one_run_s(vault, file, tmp_path):
    opened(vault, file).release("0", 0.5, "Jane", -1.0)
    for path, key in ((vault, "another run"), (tmp_path / "begun-anew.db", "loop")):
        with pytest.raises(VaultError, match=r"is of another run .*Give the vault and the file"):
            opened(path, file, key)


def test_it_is_for_its_owner_alone_and_leaves_nothing_half_written(vault, file):
    before = os.umask(0)
    try:
        opened(vault, file).release("0", 0.5, "Jane", -1.0)
    finally:
        os.umask(before)
    lock = file.with_name(f".{file.name}.lock")
    assert {path.name for path in file.parent.iterdir()} == {file.name, lock.name}
    assert [stat.S_IMODE(path.stat().st_mode) for path in (file, lock)] == [0o600, 0o600]


def test_it_tells_neither_a_name_nor_a_release(vault, file):
    session = opened(vault, file)
    released = session.release("trial-0", 0.5, "Jane", -1.0)
    text = file.read_text()
    assert "Jane" not in text
    assert repr(released) not in text
    assert session.run.run_id not in text


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_publishes_nothing(
    moment, vault, file, monkeypatch
):
    session = opened(vault, file)
    session.release("0", 0.5, "Jane", -1.0)
    before = file.read_bytes()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(files.os, moment, full)
        with pytest.raises(VaultError, match=r"cannot be written \(No space left on device"):
            session.release("1", 0.5, "Joe", -1.0)
    assert file.read_bytes() == before
    assert len(list(file.parent.iterdir())) == 2  # nothing is left beside it but its lock
    released = session.release("1", 0.7, "Joe", -1.0)  # what was drawn is replayed, and shown
    assert opened(vault, file).evaluations()["1"] == released
    assert len(opened(vault, file).evaluations()) == 2


def test_a_head_is_on_the_disk_with_its_directory_before_it_counts_as_shown(
    vault, file, monkeypatch
):
    rollback_guard, done = FileRollbackGuard(file, run_of(vault)), list[str]()
    synced, replaced = os.fsync, os.replace

    def sync(held):
        done.append("directory" if stat.S_ISDIR(os.fstat(held).st_mode) else "file")
        synced(held)

    def rename(*names, **more):
        done.append("renamed")
        replaced(*names, **more)

    monkeypatch.setattr(files.os, "fsync", sync)
    monkeypatch.setattr(files.os, "replace", rename)
    rollback_guard.show(LogHead(1, "a"))
    assert done == ["file", "renamed", "directory"]


def test_a_path_that_cannot_be_written_is_refused_before_anything_is_released(vault, tmp_path):
    with pytest.raises(VaultError, match=r"cannot be written .*this user may read and write"):
        opened(vault, tmp_path / "nowhere" / "guard.json")


def test_it_stays_where_it_is_when_the_process_goes_elsewhere(vault, file, monkeypatch, tmp_path):
    monkeypatch.chdir(file.parent)
    session = opened(vault, Path(file.name))
    monkeypatch.chdir(tmp_path)
    session.release("0", 0.5, "Jane", -1.0)
    assert FileRollbackGuard(file, session.run).head() == session.run.head()
    assert not (tmp_path / file.name).exists()


# What else it remembers -------------------------------------------------------------------------


def test_notes_of_a_host_are_kept_in_order_beside_the_head(vault, file):
    session = opened(vault, file)
    rollback_guard = FileRollbackGuard(file, session.run)
    assert rollback_guard.noted() == {}
    for name, point in (("b", [0.5, 1]), ("a", [0.25, 0]), ("b", [0.75, 2])):
        rollback_guard.note(name, point)
    session.release("0", 0.5, "Jane", -1.0)
    again = FileRollbackGuard(file, opened(vault, file).run)
    assert list(again.noted().items()) == [("b", [0.75, 2]), ("a", [0.25, 0])]
    assert again.head() == session.run.head() != LogHead()


def writes(vault, file, writer, ready, answer):
    rollback_guard = FileRollbackGuard(file, run_of(vault))
    ready()
    for i in range(8):
        rollback_guard.note(f"{writer}/{i}", i)
        rollback_guard.show_place(f"{writer}/{i}")
    answer(writer)


@pytest.mark.slow
def test_processes_that_write_at_the_same_time_lose_nothing(vault, file, tmp_path):
    FileRollbackGuard(file, run_of(vault))
    jobs = [(vault, file, writer) for writer in range(3)]
    assert at_once(writes, *jobs, folder=tmp_path) == [0, 1, 2]
    rollback_guard = FileRollbackGuard(file, run_of(vault))
    expected = {f"{writer}/{i}" for writer in range(3) for i in range(8)}
    assert set(rollback_guard.noted()) == set(rollback_guard.head().places) == expected


def test_what_another_shows_while_a_file_is_written_is_not_lost(vault, file, monkeypatch):
    run = run_of(vault)
    mine, other = FileRollbackGuard(file, run), FileRollbackGuard(file, run)
    write, threads = FileRollbackGuard._write, list[Thread]()

    def slowly(self, known):
        if self is mine:
            threads.append(Thread(target=other.show_place, args=("there",)))
            threads[0].start()
            threads[0].join(0.3)  # it has to wait for its turn
        write(self, known)

    monkeypatch.setattr(FileRollbackGuard, "_write", slowly)
    mine.note("point", 1)
    threads[0].join(30)
    assert (mine.noted(), mine.head().places) == ({"point": 1}, ("there",))
