"""System by sink on Ray: no secret in any byte that an experiment or its Ray leaves behind.

One driver runs every system, privately and carelessly, in one Ray. Every artefact is scanned while
Ray is alive and again after its shutdown: the experiments, Ray's whole session folder, its object
store, the home and temporary folders, what the driver printed, and everything that a user can
pickle. Each secret says whose it is: what a careless run made must be found, the rest must not.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shutil
import struct
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.leaks import Scanner
from tests.leaks.memory import shared_memory
from tests.leaks.ray_runs import (
    AGAIN,
    AGENTS,
    ALONE,
    BOUNDS,
    CARELESS_REWARDS,
    LEAKS,
    MANY,
    REWARD_FAILS,
    SYSTEMS,
    TRIALS,
    VECTOR_FAILS,
    N,
    sentinels,
    token,
)
from tests.worker import script

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:ray.*"),
    pytest.mark.filterwarnings("ignore:.*:ResourceWarning"),
]

REPOSITORY = Path(__file__).parents[2]

FIRST_SCALAR = b"\x15"
"""What stands before a scalar, four bytes, in a TensorBoard file."""

ADDRESS = "vault's address"

LONG = "-" + 160 * "v"
"""An address near what Ray passes inline: behind another argument it may lie in the store."""


# What is scanned ------------------------------------------------------------------------------


def _parts(y):
    """Neighbours from every part of a vector, its ends included."""
    for start in {0, 60, max(len(y) - 8, 0), *range(2**13 - 4, len(y) - 8, 2**13)}:
        if len(y) > start:
            yield start, y[start : start + 8]


class Wanted:
    """Every number that a run made, and every name; each as "owner: name or losses i ..."."""

    def __init__(self, secret, public):
        self.scanner = Scanner()
        self.scalars = {}
        self.made = {}
        self.known = {}
        key = (secret / "key").read_bytes()
        self.scanner.add_text(ADDRESS, token(key, "vault"))
        for line in (secret / "made").read_text().splitlines():
            row = json.loads(line)
            owner, call = row["owner"], row["call"]
            i = self.made[owner] = self.made.get(owner, 0) + 1
            self.scanner.add_text(f"{owner}: name {i}", token(key, call))
            self._add(f"{owner}: losses {i}", sentinels(key, call, row["n"]))
            if "x" in row and row["x"] not in BOUNDS:
                self.scanner.add_number(f"{owner}: point {i}", row["x"])
            if call == owner:  # rows, as the mechanism sees them
                for x in sentinels(key, call, row["n"]):
                    self.scanner.add_raw(f"{owner}: scaled row", x - 0.5)
        self.scanner.allow(public)
        # With little noise a release rounds to the same four bytes as the mean now and then; one
        # that equals it in all eight is the mean.
        for value in public:
            scalar = FIRST_SCALAR + struct.pack("<f", value)
            if scalar in self.scalars and self.scalars[scalar][1] not in public:
                del self.scalars[scalar]

    def _add(self, name, y):
        mean = float(np.mean(y))
        for start, part in _parts(y):
            self.scanner.add_vector(f"{name} from {start} of {len(y)}", part)
        self.scanner.add_number(f"{name}, mean", mean)
        for value in (mean, *(float(v) for _, part in _parts(y) for v in part)):
            self.scalars[FIRST_SCALAR + struct.pack("<f", value)] = f"{name}, scalar", value

    def hits(self, name, blob):
        """What is in an artefact; the same bytes are searched once."""
        kind = "tfevents" in name, hashlib.sha256(blob).digest()
        if kind not in self.known:
            found = self.known[kind] = self.scanner.hits(blob)
            if kind[0]:
                found += [secret for scalar, (secret, _) in self.scalars.items() if scalar in blob]
        return self.known[kind]


def _files(root):
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder) / name
            if path.is_file() and not path.is_symlink():
                yield str(path.relative_to(root)), path.read_bytes()


def _shm_files(known):
    for path in set(Path("/dev/shm").iterdir()) - known:
        try:
            if path.is_file() and path.stat().st_size < 2**28:
                yield f"new in shared memory {path.name}", path.read_bytes()
        except OSError:  # another program's, and gone
            continue


def _by_chance(name, hit):
    """Whether a careless run's own file holds a short form of somebody else's number.

    Such files are full of numbers, many of them with six digits: about one run in a hundred shows
    six digits of another secret there. All other forms count there too.
    """
    careless = "control " in name and not hit.startswith("control ")
    return careless and hit.endswith(("6 digits", "8 digits", "float32 decimal"))


@dataclass
class Left:
    """What the driver left, and what was found of its secrets.

    Attributes:
        every: Whether every experiment ran.
        facts: What the driver tells, by experiment.
        hits: "when/artefact" to what was found in it.
        sizes: "when/artefact" to its bytes.
        vaults: Database to what was found in it.
        made: Number of secrets by owner.
        kept: What each agent kept.
    """

    every: bool
    facts: dict[str, Any] = field(default_factory=dict)
    hits: dict[str, list[str]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    vaults: dict[str, list[str]] = field(default_factory=dict)
    made: dict[str, int] = field(default_factory=dict)
    kept: dict[str, Any] = field(default_factory=dict)

    def scan(self, when, wanted, blobs):
        for name, blob in blobs:
            self.sizes[f"{when}/{name}"] = len(blob)
            if found := [hit for hit in wanted.hits(name, blob) if not _by_chance(name, hit)]:
                self.hits[f"{when}/{name}"] = found

    def where(self, owner, *parts):
        """What was found of an owner's secrets where all these parts are in the name."""
        named = [name for name in self.hits if all(part in name for part in parts)]
        found = {n: [h for h in self.hits[n] if h.startswith(owner)] for n in named}
        return {name: hits for name, hits in found.items() if hits}

    def seen(self, *parts):
        """Whether an artefact with these parts in its name was scanned and is not empty."""
        return any(n > 0 and all(p in name for p in parts) for name, n in self.sizes.items())


def _wait_for(path, process, log):
    for _ in range(11000):
        if path.exists() and path.read_text().endswith("}"):
            return
        if process.poll() is not None:
            break
        time.sleep(0.1)
    raise AssertionError(f"The driver did not get to its end: {log.read_text()[-3000:]}")


@pytest.fixture(scope="module", params=[False, pytest.param(True, marks=pytest.mark.soak)],
                ids=["each system", "every experiment"])  # fmt: skip
def left(request, tmp_path_factory):
    """Runs the driver and scans what it leaves, while its Ray lives and after its end."""
    secret, run = tmp_path_factory.mktemp("secret"), Left(request.param)
    root = Path(tempfile.mkdtemp(prefix="lk", dir="/tmp"))  # short: sockets lie in it
    for folder in (root / "home", root / "tmp", root / "objects", secret / "agents"):
        folder.mkdir()
    key = secret / "key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(32))
    shared = set(Path("/dev/shm").iterdir())
    environment = os.environ | {
        "HOME": str(root / "home"),
        "TMPDIR": str(root / "tmp"),
        "LEAK_SECRET": str(secret),
        "LEAK_VAULT": f"sqlite:///{secret}/vault-{token(key.read_bytes(), 'vault')}{LONG}.db",
        "PYTHONPATH": str(REPOSITORY),
        "OMP_NUM_THREADS": "1",
    }
    environment.pop("RAY_ADDRESS", None)
    with (root / "stdout").open("w") as out, (root / "stderr").open("w") as err:
        process = script(
            "tests.leaks.ray_runs:main", {"root": str(root), "every": request.param},
            cwd=REPOSITORY, env=environment, stdin=subprocess.PIPE, stdout=out, stderr=err,
        )  # fmt: skip
    try:
        _wait_for(root / "facts.json", process, root / "stderr")
        run.facts = json.loads((root / "facts.json").read_text())
        wanted = Wanted(secret, [v for facts in run.facts.values() for v in facts["public"]])
        run.made = wanted.made
        run.scan("alive", wanted, _files(root))
        run.scan("alive", wanted, shared_memory(root))
        process.communicate(b"\n", timeout=60)
        run.scan("after", wanted, _files(root))
        run.scan("after", wanted, _shm_files(shared))
        for path in secret.rglob("*.db*"):
            run.vaults[path.name.partition("-")[0]] = wanted.scanner.hits(path.read_bytes())
        run.kept = {p.stem: json.loads(p.read_text()) for p in secret.rglob("*.best")}
    finally:
        if process.stdin is not None:
            process.stdin.close()
        if process.poll() is None:
            process.terminate()  # Ray's processes follow their driver
            process.wait(20)
        shutil.rmtree(root, ignore_errors=True)
    return run


# The table --------------------------------------------------------------------------------------

OF_SYSTEM = {
    "result.json": ("experiments/{}", "result.json"),
    "progress.csv": ("experiments/{}", "progress.csv"),
    "TensorBoard": ("experiments/{}", "tfevents"),
    "experiment state": ("experiments/{}", "experiment_state"),
    "tuner.pkl": ("experiments/{}", "tuner.pkl"),
    "params.json": ("experiments/{}", "params.json"),
    "params.pkl": ("experiments/{}", "params.pkl"),
    "error.txt": ("experiments/{}", "error.txt"),
    "error.pkl": ("experiments/{}", "error.pkl"),
    "searcher's state": ("experiments/{}", "searcher-state"),
    "Ray's copies of results": ("ray/", "driver_artifacts", "result.json"),
    "pickled search": ("objects/{}", "search."),
    "pickled trainable": ("objects/{}", "trainable.cloudpickle"),
    "pickled results": ("objects/{}", "results.cloudpickle"),
    "dataframe of results": ("objects/{}", "frame.csv"),
    "shown results": ("objects/{}", "shown.txt"),
    "report": ("objects/{}", "report.html"),
    "exceptions": ("objects/{}", "errors.txt"),
    "pickled exceptions": ("objects/{}", "errors.pickle"),
}
"""Sinks of one experiment; {} stands for the system's name."""

SHARED = {
    "logs of workers, stdout": ("ray/", "logs/worker", ".out"),
    "logs of workers, stderr": ("ray/", "logs/worker", ".err"),
    "stdout": ("/stdout",),
    "stderr": ("/stderr",),
    "object store": ("shared memory",),
    "Ray's logs": ("ray/", "logs/raylet.out"),
    "home": ("home/",),
    "anywhere": ("",),
}
"""Sinks of the whole Ray."""

SINKS = OF_SYSTEM | SHARED


def parts_of(sink, experiment):
    return [part.format(experiment) for part in SINKS[sink]]


TIMES = ("alive/", "after/")


@pytest.mark.parametrize("system", SYSTEMS)
def test_no_secret_reaches_a_sink(system, left):
    for sink in SINKS:
        nothing_failed = system == "rows" and sink in {"error.txt", "error.pkl", "exceptions"}
        assert nothing_failed or left.seen("alive/", *parts_of(sink, system)), sink
    for sink, when in itertools.product(SINKS, TIMES):
        found = left.where(system, when, *parts_of(sink, ""))
        assert {name: hits[:5] for name, hits in found.items()} == {}, (sink, when)


def test_the_vaults_address_is_nowhere(left):
    assert [left.where(ADDRESS, when) for when in TIMES] == [{}, {}]


def test_nobody_but_the_careless_is_found_at_all(left):
    owners = {hit.partition(":")[0] for hits in left.hits.values() for hit in hits}
    assert owners == {f"control {system}" for system in SYSTEMS}


# Controls ---------------------------------------------------------------------------------------

EVERYBODY = (
    "result.json", "progress.csv", "TensorBoard", "experiment state", "error.txt", "error.pkl",
    "Ray's copies of results", "pickled results", "dataframe of results", "shown results",
    "exceptions", "pickled exceptions", "logs of workers, stdout", "logs of workers, stderr",
    "stdout", "stderr",
)  # fmt: skip
"""Where every careless run leaks, alive and after the shutdown alike."""

MORE = {"records": ("searcher's state", "pickled search", "home")}
"""Where one system's leaks too."""


@pytest.mark.parametrize("system", SYSTEMS)
def test_control_a_careless_run_is_found_in_each_sink(system, left):
    owner = f"control {system}"
    experiment = CARELESS_REWARDS[0] if owner in CARELESS_REWARDS else owner
    for sink, when in itertools.product((*EVERYBODY, *MORE.get(system, ())), TIMES):
        assert left.where(owner, when, *parts_of(sink, experiment)), (sink, when)


def test_control_each_form_of_a_vector_is_found(left):
    """In shared memory, as the hex of its pickle, as a mean, and as a TensorBoard scalar."""

    def found(form, *parts):
        hits = left.where("control records", *parts).values()
        return any(re.search(form, hit) for found in hits for hit in found)

    for n in (N, MANY):  # sent to an actor without a seal
        assert found(f"of {n}.*float64< bytes", "alive/shared memory")
    assert found("float64< hex", "experiments", "experiment_state")
    assert found("mean", "experiments", "result.json")
    assert found("scalar", "experiments", "tfevents")
    config = left.where("control records", "experiments", "result.json")
    assert len({name.split("/")[-2] for name in config}) == 2  # reported, and mutated


@pytest.mark.parametrize("steps", [0, 1])
def test_control_a_release_beside_the_mean_is_allowed_as_a_scalar_and_the_mean_is_not(
    steps, tmp_path
):
    key = os.urandom(32)
    (tmp_path / "key").write_bytes(key)
    row = {"owner": "records", "call": "one", "n": 9}
    (tmp_path / "made").write_text(json.dumps(row) + "\n")
    mean = float(np.mean(sentinels(key, "one", 9)))
    nearby = mean
    for _ in range(steps):
        nearby = float(np.nextafter(nearby, np.float64(np.float32(mean))))
    wanted = Wanted(tmp_path, [nearby])
    found = wanted.hits("events.tfevents", FIRST_SCALAR + struct.pack("<f", nearby))
    assert found == ([] if steps else ["records: losses 1, scalar"])


# What ran ---------------------------------------------------------------------------------------


def test_experiments_ran_and_failed_as_they_should(left):
    facts = left.facts
    trials = {name: (known["trials"], known["errors"]) for name, known in facts.items()}
    alone = len(ALONE["records"])
    assert trials.pop("records big") in ((6, 0), (7, 0))  # two points are compared, or three
    expected = {
        "records wild": (4, 1 + alone),
        "records outside": (3, 1),
        "records blocks": (2, 0),
        "records scores": (2, 0),
        "records means": (3, 0),
        "rewards wild": (4, 1 + alone),
        "rewards plain": (2, 0),
        "federation": (len(AGENTS) * TRIALS + 2, 2),
        "rows": (3, 0),
        "duets": (3, 1),
        "control records": (len(LEAKS), 1),
        "control rewards": (2, 1),
        "control rows": (3, 1),
    }
    assert trials == {n: expected[n] for n in expected if left.every or n not in AGAIN}
    told = {name: known["protected"] for name, known in facts.items() if "protected" in known}
    assert {name for name, protected in told.items() if not protected} == {"control rewards"}
    users = {facts[n]["plays"] for n in ("rewards wild", "rewards plain", "duets") if n in facts}
    assert users == {2}


def test_every_way_was_gone(left):
    retried = 1
    alone = len(ALONE["records"])
    big = left.facts["records big"]["trials"]
    units = 1 + 2 * 2 * left.every  # a name of persons; two trials with blocks, two with scores
    ways = (1 + left.every) * (len(VECTOR_FAILS) + 2) + alone
    assert left.made["records"] == big + 3 + units + retried + ways
    users = 2 * (2 + 2 * left.every) + 2 * 1  # good ones with a name, plain ones, a failing name
    assert left.made["rewards"] >= len(REWARD_FAILS) + alone + users - 1
    assert left.made["duets"] == len(REWARD_FAILS) + 2
    for agent in AGENTS:
        assert left.made[f"federation {agent}"] == TRIALS + 1


def test_losses_of_released_steps_are_gone_from_the_vault(left):
    assert left.facts["records big"]["held"] == []
    assert left.facts["records big"]["charges"] > 0
    assert left.vaults["vault"] == []
    assert left.vaults["server.db"] == []


@pytest.mark.parametrize("agent", AGENTS)
def test_an_agents_database_holds_its_own_trials_and_nobody_elses(agent, left):
    owners = {hit.partition(":")[0] for hit in left.vaults[f"{agent}.db"]}
    assert owners == {f"federation {agent}"}
    config, value = left.kept[agent]
    assert set(config) == {"x"}
    assert 0.1 < value < 1.0


def test_short_forms_count_everywhere_but_in_a_careless_runs_own_files():
    short, whole = "rewards: losses 14 from 0 of 4[3] as 6 digits", "rewards: name 1 as text bytes"
    assert _by_chance("experiments/control records/trial/progress.csv", short)
    assert not _by_chance("experiments/control records/trial/progress.csv", whole)
    assert not _by_chance("experiments/control records/trial/progress.csv", f"control {short}")
    assert not _by_chance("experiments/records/trial/progress.csv", short)
