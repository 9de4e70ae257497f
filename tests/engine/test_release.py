"""The one way out: what a run remembers of its releases, and who may draw.

The reference in most tests is a set: what was published, with what was charged for it.
"""

from __future__ import annotations

import ast
import collections
import hashlib
import json
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privbo_plugins.errors import VaultError
from privbo_plugins.files import LogHead
from privbo_plugins.privacy.local import make_mechanism
from privbo_plugins.privacy.noise import InsecureNoise, SecureNoise
from privbo_plugins.sessions.rewards import RewardSession
from privbo_plugins.store.release import TEST_NOISE, Order, Outlet
from privbo_plugins.store.run import begin_or_join
from privbo_plugins.store.vault import Vault, open_vault

from .helpers import altered, cube, open_session, quadratic, tell
from .test_session import config

KEY = "study"


class Shared:
    """A guard that several runs share, as workers share a study."""

    def __init__(self):
        self.shown = []
        self.where = []
        self.broken = False

    def head(self):
        shown = max(self.shown, key=lambda head: head.n, default=LogHead())
        return replace(shown, places=tuple(self.where))

    def show(self, head):
        if self.broken:
            raise VaultError("the study cannot be written")
        self.shown.append(head)

    def show_place(self, place):
        self.where.append(place)


class Counter:
    """Counts what was charged and drawn."""

    def __init__(self):
        self.charged = []
        self.drawn = []

    def release(self, run, key):
        def draw(_noise):
            self.drawn.append(key)
            return {"values": [float(len(self.drawn))]}

        order = Order("value", key, lambda _tx: self.charged.append(key))
        with run.transaction() as tx:
            return float(Outlet(run).release(tx, order, draw)["values"][0])


def run_of(path, rollback_guard=None):
    run = begin_or_join(open_vault(f"sqlite:///{path}"), KEY, {"a": 1})
    if rollback_guard is not None:
        run.guarded_by(rollback_guard)
    return run


@pytest.fixture
def path(tmp_path):
    return tmp_path / "vault.db"


@pytest.fixture
def many():
    counter = Counter()
    yield counter
    assert counter.charged == counter.drawn


# The chain --------------------------------------------------------------------------------------


def test_the_head_is_a_hash_of_every_line_in_order(path, many):
    run = run_of(path)
    assert run_of(path).head() == run.head()
    for key in "abc":
        many.release(run, key)
    run.note("a fact")
    many.release(run, "a")  # replayed
    events = [
        ("", "vault", run.vault.vault_id, "", ""),
        ("", "host", KEY, "", run.run_id),
        (run.run_id, "run", KEY, "", '{"a": 1}'),
    ]
    for n, key in enumerate("abc"):
        told = json.dumps({"values": [float(n + 1)]})
        events.append((run.run_id, "release", f"value/{key}", "", told))
    events.append((run.run_id, "note", "a fact", "", ""))
    with closing(sqlite3.connect(path)) as log, log:
        salts = [salt for (salt,) in log.execute("SELECT salt FROM privbo_events ORDER BY seq")]
    assert len(set(salts)) == 7
    digest = ""
    for event, salt in zip(events, salts, strict=True):
        digest = sha("\0".join([digest, *event, salt]))
    assert run.head() == LogHead(7, digest)
    assert many.drawn == ["a", "b", "c"]


def test_two_vaults_that_say_the_same_have_chains_of_their_own(tmp_path):
    """A release of two values is often drawn alike after a set-back."""
    heads = []
    for name in "ab":
        run = run_of(tmp_path / f"{name}.db")
        run.note("a fact")
        heads.append(run.head())
    assert heads[0].n == heads[1].n
    assert heads[0] != heads[1]


def sha(text):
    return hashlib.sha256(text.encode()).hexdigest()


def test_every_line_of_a_ledger_is_in_the_chain(path):
    vault = open_vault(f"sqlite:///{path}")
    curator = RewardSession(make_mechanism(1.0, bound=1.0), vault, KEY)
    curator.release("0", 0.5, "Jane", -1.0)
    curator.run.note("a fact")
    curator.run.mark_unprotected("a reason")
    session = open_session(config(mu=1.0, training_mu=0.5), cube(1), vault=vault)
    session.charge_training("0/first")
    tell(session, "t0", lambda x: np.zeros(50))
    with vault.transaction("") as tx:
        kinds = collections.Counter(event.kind for event in tx.events_since(0))
    assert kinds == {
        **{"host": 2, "run": 2, "frozen": 3, "note": 1, "unprotected": 2, "point": 1, "vault": 1},
        **{"paid": 1, "charge": 2, "release": 2},
    }


@pytest.mark.parametrize("lost", ["a training", "a mark", "another run's evaluation"])
def test_a_vault_that_lost_any_line_is_noticed(path, tmp_path, lost):
    rollback_guard, backup = Shared(), tmp_path / "backup.db"
    losses, _ = quadratic(50, 1, 0)

    def session():
        vault = open_vault(f"sqlite:///{path}")
        return open_session(config(mu=1.0, training_mu=0.5), cube(1), vault=vault)

    first = session()
    first.run.guarded_by(rollback_guard)
    shutil.copyfile(path, backup)
    if lost == "a training":
        first.charge_training("0/first")
    elif lost == "a mark":
        first.run.mark_unprotected("trials returned plain floats")
    else:
        curator = RewardSession(make_mechanism(1.0, bound=1.0), first.run.vault, "another")
        curator.release("0", 0.5, "Jane", -1.0)
        tell(first, "t0", losses)  # the next release of this run shows it
    shutil.copyfile(backup, path)
    with pytest.raises(VaultError, match="older backup"):
        session().run.guarded_by(rollback_guard)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE privbo_events SET payload = '{\"values\": [0.0]}' WHERE key = 'value/b'",
        "DELETE FROM privbo_events WHERE key = 'value/b'",
        "UPDATE privbo_events SET digest = 'f' WHERE seq = 3",
        "UPDATE privbo_events SET salt = 'f' WHERE seq = 3",
        "UPDATE privbo_events SET key = 'z' WHERE seq = 3",
        "UPDATE privbo_events SET payload = x'00' WHERE seq = 3",
        "UPDATE privbo_events SET seq = 99 WHERE seq = 5",
        "UPDATE privbo_events SET payer = 'bob' WHERE kind = 'paid'",
        "UPDATE privbo_events SET payload = '[0.1, 0.0]' WHERE kind = 'paid'",
        "UPDATE privbo_events SET payload = '[1.0, 0.1]' WHERE kind = 'paid'",
        "UPDATE privbo_events SET payload = '[0.1]' WHERE key LIKE 'evaluation/%'",
        "UPDATE privbo_events SET key = 'another' WHERE kind = 'paid'",
        "DELETE FROM privbo_events WHERE kind = 'paid'",
    ],
)
def test_a_line_that_does_not_fit_the_chain_ends_every_run_of_its_vault(path, many, damage):
    """Above all who was asked: another name would be another budget."""
    run, mechanism = run_of(path), make_mechanism(1.0, bound=1.0)
    for key in "abc":
        many.release(run, key)
    RewardSession(mechanism, run.vault, "users").release("0", 0.1, "ann", -1.0)
    altered(f"sqlite:///{path}", damage)
    with pytest.raises(VaultError, match="damaged"):
        run_of(path)
    with pytest.raises(VaultError, match="damaged"):
        RewardSession(mechanism, open_vault(f"sqlite:///{path}"), "users")


@pytest.mark.parametrize("lost", ["1", "3", "6"])
def test_events_that_are_cut_off_the_logs_end_are_missed_by_its_guard(path, many, lost):
    rollback_guard = Shared()
    run = run_of(path, rollback_guard)
    for key in "abc":
        many.release(run, key)
    last = f"(SELECT max(seq) - {lost} FROM privbo_events)"
    altered(f"sqlite:///{path}", f"DELETE FROM privbo_events WHERE seq > {last}")
    with pytest.raises(VaultError, match=r"older backup|does not hold"):
        run_of(path, rollback_guard)
    with pytest.raises(VaultError, match="older backup"):
        many.release(run, "d")


# Put back ---------------------------------------------------------------------------------------


def test_a_vault_that_is_put_back_under_a_living_run_is_noticed_before_the_next_draw(
    path, tmp_path, many
):
    run, backup = run_of(path), tmp_path / "backup.db"
    many.release(run, "a")
    shutil.copyfile(path, backup)
    many.release(run, "b")
    shutil.copyfile(backup, path)
    with pytest.raises(VaultError, match="older backup"):
        many.release(run, "b")
    assert many.drawn == ["a", "b"]


# Copies -----------------------------------------------------------------------------------------


def test_copies_that_draw_at_the_same_moment_publish_one_release(path, tmp_path):
    """The second copy is opened while the first one draws: the first one publishes nothing."""
    rollback_guard, copy, other = Shared(), tmp_path / "copy.db", Counter()
    first = run_of(path, rollback_guard)
    shutil.copy(path, copy)
    published = []

    def draw(_noise):
        published.append(other.release(run_of(copy, rollback_guard), "a"))
        return {"values": [7.0]}

    order = Order("value", "a", lambda _tx: None)
    outlet = Outlet(first)

    def release():
        with first.transaction() as tx:
            outlet.release(tx, order, draw)
        published.append(7.0)

    with pytest.raises(VaultError):
        release()
    assert published == [1.0]


def test_a_copy_that_is_opened_while_a_head_is_shown_ends_its_publication(path, tmp_path):
    """The later head replaces the copy's; the places that are shown still tell of it."""

    class Single(Shared):
        """Keeps the last head alone, as an attribute does."""

        then: Any = None

        def head(self):
            shown = self.shown[-1] if self.shown else LogHead()
            return replace(shown, places=tuple(self.where))

        def show(self, head):
            between, self.then = self.then, None
            if between is not None:
                between()
            super().show(head)

    rollback_guard, copy = Single(), tmp_path / "copy.db"
    first, counter, others = run_of(path, rollback_guard), Counter(), Counter()
    shutil.copy(path, copy)
    rollback_guard.then = lambda: others.release(run_of(copy, rollback_guard), "a")
    with pytest.raises(VaultError, match="copy"):
        counter.release(first, "a")
    assert (counter.drawn, others.drawn) == (["a"], ["a"])


def test_a_release_is_published_only_once_its_head_is_shown(path, many):
    rollback_guard = Shared()
    run = run_of(path, rollback_guard)
    rollback_guard.broken = True
    for _ in range(2):  # the second time it is replayed, and not published either
        with pytest.raises(VaultError, match="cannot be written"):
            many.release(run, "a")
    with pytest.raises(VaultError, match="cannot be written"):
        run_of(path, rollback_guard)
    rollback_guard.broken = False
    assert many.release(run, "a") == 1.0
    assert rollback_guard.head() == run.head()
    assert many.drawn == ["a"]


def test_heads_are_shown_in_order_whoever_releases(path, many):
    rollback_guard = Shared()
    runs = [run_of(path, rollback_guard) for _ in range(3)]
    for i in range(9):
        many.release(runs[i % 3], str(i))
    shown = [head.n for head in rollback_guard.shown]
    assert shown == sorted(shown)
    assert rollback_guard.head() == runs[0].head()


# Who begins, who draws --------------------------------------------------------------------------


def test_what_a_host_remembers_and_the_vault_does_not_hold_is_refused(path):
    run_of(path)
    with pytest.raises(VaultError, match="another vault"):
        begin_or_join(open_vault(f"sqlite:///{path}"), KEY, {"a": 1}, run_id="0" * 32)


class Overwritten(SecureNoise):
    """A subclass could do anything."""


@pytest.mark.parametrize("noise", [InsecureNoise(0), Overwritten()], ids=type)
def test_an_outlet_is_secure_or_says_so_for_ever_and_of_its_run_alone(path, noise):
    run = run_of(path)
    assert not Outlet(run).uses_test_noise
    assert run.marks("unprotected") == ()
    assert Outlet(run, noise).uses_test_noise
    assert run_of(path).marks("unprotected") == (TEST_NOISE,)
    assert begin_or_join(run.vault, "another", {"a": 1}).marks("unprotected") == ()


def test_nobody_but_the_mechanisms_and_the_way_out_draws():
    """Whatever calls a source of noise by its methods' names; import-linter checks the rest."""
    methods = {"add_gaussian", "add_laplace", "flip"}
    found = {}
    for package in ("privbo_plugins", "optuna_samplers", "raytune_searchers"):
        for file in Path(package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    if node.func.attr in methods:
                        found.setdefault(file.as_posix(), set()).add(node.func.attr)
    assert set(found) == {
        "privbo_plugins/privacy/local.py",  # mechanisms, which are handed their noise
        "privbo_plugins/sessions/records.py",  # what an order draws, with the noise it is handed
        "privbo_plugins/sessions/tables.py",
        "privbo_plugins/sessions/broadcasts.py",
    }


def test_a_vault_in_memory_lies_apart_from_every_other():
    first, second = open_vault(), open_vault()
    assert first.place() == first.place() != second.place()
    assert isinstance(first, Vault)


def test_databases_of_one_server_lie_apart(postgres_database, postgres_url):
    import psycopg

    first = open_vault(postgres_database)
    with psycopg.connect(postgres_database.replace("+psycopg", "")) as connection:
        name = f"r{first.vault_id[:8]}"
        connection.execute(f"CREATE ROLE {name} LOGIN")
        connection.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {name}")
        connection.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
    scheme, _, rest = postgres_database.partition("://")
    host = rest.partition("@")[2] or rest
    poor = open_vault(f"{scheme}://{name}@{host}", create=False)
    assert poor.place() == poor.place()
    assert first.place() == first.place()
    for vault in (first, poor):
        vault.close()
    with psycopg.connect(postgres_database.replace("+psycopg", "")) as connection:
        connection.execute("GRANT EXECUTE ON FUNCTION pg_control_system() TO PUBLIC")
        connection.execute(f"DROP OWNED BY {name}")
        connection.execute(f"DROP ROLE {name}")


def test_a_session_that_replays_shows_what_another_one_released(path):
    losses, _ = quadratic(100, 1, 0)
    rollback_guard = Shared()

    def session():
        return open_session(config(mu=1.0), cube(1), vault=open_vault(f"sqlite:///{path}"))

    quiet, loud = session(), session()
    loud.run.guarded_by(rollback_guard)
    value = tell(quiet, "t0", losses)  # its process died before it had shown anything
    space = loud.space
    x = loud.ask("t0").x
    assert loud.tell("t0", space.decode(x), space, losses(x))[0] == value
    assert loud.run.head() == quiet.run.head() == rollback_guard.head()
