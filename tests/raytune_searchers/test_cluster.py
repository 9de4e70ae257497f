"""Several nodes: trials on all of them, and whatever node dies the ledger is what it was."""

import gc
import json
import os
import signal
import time

import numpy as np
import pytest

from raytune_searchers import DPGIBOSearch
from tests.conftest import databases
from tests.inside import call_host, n_compared, published_by
from tests.leaks.memory import shared_memory
from tests.leaks.scanner import Scanner
from tests.raytune_searchers.cluster_scenes import (
    federation_search,
    make_search,
    rewards_search,
    sentinels,
)
from tests.raytune_searchers.clusters import a_cluster, ip
from tests.raytune_searchers.runs import PLANE, assert_sound, ledger
from tests.raytune_searchers.scenes import BEFORE, STORED
from tests.worker import lines, script

pytestmark = pytest.mark.soak

STALLED = 600.0
"""Seconds after which a driver counts as hung, however busy the machine."""

SCENES = "tests.raytune_searchers.cluster_scenes"


@pytest.fixture(scope="module")
def cluster(postgres_url):
    """Three nodes; skipped with them where there is no PostgreSQL."""
    with a_cluster(3) as nodes:
        yield nodes


@pytest.fixture
def nodes(cluster):
    """The same, all of them alive, and no driver of before."""
    cluster.revive()
    yield cluster
    for driver in _DRIVERS:
        driver.end()
    _DRIVERS.clear()
    gc.collect()  # connections to PostgreSQL: their warning belongs to this test


_DRIVERS = []


@pytest.fixture
def secret(tmp_path):
    """A folder beside everything that is scanned."""
    folder = tmp_path / "secret"
    folder.mkdir()
    (folder / "key").write_bytes(os.urandom(16))
    return folder


class Driver:
    """A scene in a process of its own, attached to a node."""

    def __init__(self, scene, folder, nodes, at, **settings):
        folder.mkdir(exist_ok=True)
        self.folder, self._said = folder, folder.parent / f"said-{folder.name}-{time.monotonic()}"
        own = {"folder": str(folder), "address": nodes.address, "ip": ip(at)} | settings
        environment = os.environ | {"TUNE_GLOBAL_CHECKPOINT_S": "1"}
        with self._said.open("wb") as out:
            self._process = script(
                f"{SCENES}:{scene}", own, stdout=out, stderr=out, env=environment
            )
        _DRIVERS.append(self)

    def wait(self):
        """Until it has ended well."""
        assert self._code() == 0, self._said.read_text()[-3000:]

    def ended(self):
        """What it has left, once it has ended well."""
        self.wait()
        return facts_of(self.folder)

    def killed(self):
        """Waits until it was."""
        assert self._code() == -signal.SIGKILL, self._said.read_text()[-3000:]

    def until_held(self):
        """Waits until a trial waits for the test."""
        end = time.monotonic() + STALLED
        while not (self.folder / "held").exists():
            assert self._process.poll() is None, self._said.read_text()[-3000:]
            assert time.monotonic() < end, self._said.read_text()[-3000:]
            time.sleep(0.05)

    def go_on(self):
        (self.folder / "go on").touch()

    def said(self):
        return self._said.read_bytes()

    def end(self):
        """Whatever it does."""
        self._process.kill()
        self._process.wait()

    def _code(self):
        return self._process.wait(STALLED)


def spent(database):
    """(sum of mu squared, charges, releases) of the validation records, by the database itself."""
    import psycopg

    with psycopg.connect(database.replace("+psycopg", "")) as connection:
        row = connection.execute(
            "SELECT sum((payload::json->>0)::float ^ 2), count(*) FROM privbo_events "
            "WHERE kind = 'charge' AND payer = 'validation'"
        ).fetchone()
        released = "SELECT count(*) FROM privbo_events WHERE kind = 'release'"
        releases = connection.execute(released).fetchone()
    return float(row[0]), int(row[1]), int(releases[0])


def check_records(database, folder, facts, lost=0):
    """The budget pays for each loss once, and Tune shows releases; the trainings.

    So many trials may have been lost: Tune gives one up whose worker dies before it has begun.
    """
    assert facts["errors"] <= lost
    assert facts["protected"]
    mu2, charges, releases = spent(database)
    assert charges == releases
    search = make_search(vault=database, run_name="r", search_space=PLANE, **RECORDS)
    of_a_value = next(c.mu for c in ledger(search)[0] if c.kind == "value")
    left = (3 - n_compared(ledger(search)[1])) * of_a_value**2
    assert mu2 + left == pytest.approx(1.0, rel=1e-9)
    assert_sound(search)
    published = published_by(search)
    assert facts["shown"].items() <= published.items()
    assert search.finished()
    assert ledger(search)[2] == []
    return lines(folder / "where")


RECORDS = {"n_starts": 1, "n_steps": 1, "memory": -1}


def nodes_of(trainings):
    """On which nodes trials have run."""
    return {node for _, node, _ in trainings}


def everything(folder):
    """All files below a folder."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            found[str(path.relative_to(folder))] = path.read_bytes()
    return found


# All nodes --------------------------------------------------------------------------------------


def test_trials_on_all_nodes_spend_exactly_the_budget_and_leave_no_loss_anywhere(
    nodes, tmp_path, secret, postgres_database
):
    driver = Driver(
        "records", tmp_path / "all", nodes, 0, secret=str(secret), vault=postgres_database
    )
    facts = driver.ended()
    trainings = check_records(postgres_database, driver.folder, facts)
    assert nodes_of(trainings) == set(nodes.ids.values())
    assert set(facts["addresses"]) <= {ip(n) for n in range(3)}

    scanner, written = Scanner(), everything(nodes.folder) | everything(driver.folder)
    written |= {"what the driver said": driver.said(), **dict(shared_memory(nodes.folder))}
    for trial, *_ in trainings:
        scanner.add_vector(f"losses of {trial}", sentinels(secret, trial))
    scanner.allow(facts["shown"].values())
    assert scanner.scan(written) == []
    logs = b"".join(blob for name, blob in written.items() if "worker-" in name)
    assert all(f"trial {trial} runs".encode() in logs for trial, *_ in trainings)  # of every node
    control = scanner.hits(sentinels(secret, trainings[0][0]).tobytes())
    assert len(control) >= len(sentinels(secret, "any"))


def test_every_other_system_runs_on_all_nodes_and_keeps_its_ledger(
    nodes, tmp_path, postgres_database, agents_databases
):
    """One driver after another would spend its time on imports."""
    folder, everywhere = tmp_path / "others", set(nodes.ids.values())
    driver = Driver(
        "everybody", folder, nodes, 1, vault=postgres_database, agent_vaults=agents_databases
    )
    driver.wait()
    for kind in ("rewards", "duets"):
        check_rewards(kind, postgres_database, folder / kind)
        assert nodes_of(lines(folder / kind / "where")) == everywhere
    rows = facts_of(folder / "rows")
    assert rows["errors"] == 0
    assert rows["protected"]
    assert rows["shown"] == rows["told"]
    assert nodes_of(lines(folder / "rows" / "where")) == everywhere
    federation = facts_of(folder / "federation")
    check_federation(postgres_database, agents_databases, federation)
    assert len(federation["addresses"]) == 3


def facts_of(folder):
    return dict(json.loads((folder / "facts.json").read_text()))


def check_rewards(kind, database, folder):
    """Five users, each charged once, and Tune shows what was stored."""
    facts = facts_of(folder)
    assert facts["errors"] == 0
    assert facts["protected"]
    search = rewards_search(kind, database)
    search.set_search_properties(None, None, {"x": PLANE["x"]})
    rows = call_host(search, "ledger")
    assert {trial: value for trial, *_, value in rows} == facts["shown"]
    assert len(rows) == 5
    assert {epsilon for _, _, epsilon, _, _ in rows} == {1.0}


def check_federation(database, agent_vaults, facts):
    """Each round is released and charged once, and no agent is left out."""
    assert facts["errors"] == 0
    assert facts["protected"]
    assert facts["finished"]
    assert facts["left"] == []
    assert len(facts["shown"]) == 9  # three agents, three trials each
    charges = call_host(federation_search(database, agent_vaults), "ledger")
    assert len(charges) == 2
    assert len({c.key for c in charges}) == 2


@pytest.fixture
def agents_databases(postgres_database):
    """A database for each agent, as a URL with ``{agent}`` in it."""
    template = postgres_database + "_{agent}"
    names = [template.format(agent=a).rsplit("/", 1)[1] for a in ("oslo", "bergen", "bodo")]
    with databases(postgres_database, *names):
        yield template


# Deaths -----------------------------------------------------------------------------------------


def test_a_worker_node_that_dies_costs_no_second_charge(
    nodes, tmp_path, secret, postgres_database
):
    """Its trial's losses are in the vault, and Tune has not been told: the retry replays."""
    driver = Driver(
        "records", tmp_path / "b", nodes, 0,
        secret=str(secret), vault=postgres_database, wanted=[ip(2), STORED],
    )  # fmt: skip
    driver.until_held()
    before = spent(postgres_database)
    nodes.kill(2)
    driver.go_on()
    facts = driver.ended()
    trainings = check_records(postgres_database, driver.folder, facts, lost=1)
    assert before[1] <= spent(postgres_database)[1]
    held = json.loads((driver.folder / "held").read_text())
    assert [trial for trial, *_ in trainings].count(held) == 1  # it was not evaluated again
    assert held in facts["shown"]


def test_a_host_whose_node_dies_moves_and_the_run_goes_on(
    nodes, tmp_path, secret, postgres_database
):
    dead = nodes.ids[2]
    driver = Driver(
        "records", tmp_path / "c", nodes, 1,
        secret=str(secret), vault=postgres_database, host_ip=ip(2), wanted=[ip(1), BEFORE],
    )  # fmt: skip
    driver.until_held()
    assert hosts_on(nodes, 2)
    nodes.kill(2)
    driver.go_on()
    facts = driver.ended()
    check_records(postgres_database, driver.folder, facts, lost=1)
    assert facts["host"] in nodes.ids.values()
    assert facts["host"] != dead


def hosts_on(nodes, number):
    """Whether a host of ours runs on a node."""
    return any("HostActor" in name for name in nodes.processes(number))


def test_an_experiment_whose_driver_was_killed_goes_on_from_another_node(
    nodes, tmp_path, secret, postgres_database
):
    folder = tmp_path / "d"
    own = {"secret": str(secret), "vault": postgres_database}
    Driver("records", folder, nodes, 1, dies=True, **own).killed()
    before = spent(postgres_database)
    shown = published_by(make_search(vault=postgres_database, run_name="r", search_space=PLANE,
                                     **RECORDS))  # fmt: skip
    assert before[0] < 1
    facts = Driver("records", folder, nodes, 2, restored=True, **own).ended()
    check_records(postgres_database, folder, facts)
    found = DPGIBOSearch.from_experiment(folder / "run")
    assert published_by(found).items() >= shown.items()
    assert facts["host"] == nodes.ids[2]
    assert np.isclose(facts["mu"] ** 2, spent(postgres_database)[0])
