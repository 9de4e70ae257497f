"""No byte of an agent's trials anywhere but in its own database.

A federation whose objective tells its secrets wherever it can, in a Ray of its own, and a control
that leaks them: the control's must be found, the agents' must not.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray is not installed (the ray extra)")

from tests.leaks import Scanner
from tests.raytune_searchers.federated_driver import BOUNDS, NAMES, TRIALS
from tests.raytune_searchers.test_leaks import (
    REPOSITORY,
    _files,
    _shared_memory,
    _shm_files,
    _wait_for,
)

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]


@dataclass
class Found:
    """What a run left.

    Attributes:
        facts: What the driver tells.
        hits: "when/artefact" to what was found in it, as "agent: sentinel as encoding".
        seen: Artefacts that were scanned.
        vaults: Database to what was found in it.
        made: Number of secrets by agent.
        kept: What each agent kept.
    """

    facts: dict[str, Any] = field(default_factory=dict)
    hits: dict[str, list[str]] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    vaults: dict[str, list[str]] = field(default_factory=dict)
    made: dict[str, int] = field(default_factory=dict)
    kept: dict[str, Any] = field(default_factory=dict)

    def scan(self, when: str, scanner: Scanner, blobs: Iterator[tuple[str, bytes]]) -> None:
        for name, blob in blobs:
            self.seen.add(f"{when}/{name}")
            if hits := scanner.hits(blob):
                self.hits[f"{when}/{name}"] = hits


def sentinels(secret: Path, found: Found) -> Scanner:
    scanner = Scanner()
    for line in (secret / "made").read_text().splitlines():
        row = json.loads(line)
        agent = row["agent"]
        i = found.made[agent] = found.made.get(agent, 0) + 1
        scanner.add_text(f"{agent}: name {i}", row["name"])
        for j, value in enumerate(row["values"]):
            if j or (agent != "control" and value not in BOUNDS):
                scanner.add_number(f"{agent}: value {i}.{j}", value)
    return scanner


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    secret, run = tmp_path_factory.mktemp("secret"), Found()
    root = Path(tempfile.mkdtemp(prefix="lk", dir="/tmp"))
    for folder in (root / "home", root / "tmp", secret / "agents"):
        folder.mkdir()
    shared = set(Path("/dev/shm").iterdir())
    environment = os.environ | {
        "HOME": str(root / "home"),
        "TMPDIR": str(root / "tmp"),
        "LEAK_SECRET": str(secret),
        "PYTHONPATH": str(REPOSITORY),
        "OMP_NUM_THREADS": "1",
    }
    environment.pop("RAY_ADDRESS", None)
    command = [
        sys.executable,
        "-m",
        "tests.raytune_searchers.federated_driver",
        "leaks",
        str(root),
    ]
    with (root / "stdout").open("w") as out, (root / "stderr").open("w") as err:
        process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=err,
            text=True,
        )
    try:
        _wait_for(root / "facts.json", process, root / "stderr")
        run.facts = json.loads((root / "facts.json").read_text())
        scanner = sentinels(secret, run)
        run.scan("alive", scanner, _files(root))
        run.scan("alive", scanner, _shared_memory(root))
        process.communicate("\n", timeout=60)
        run.scan("after", scanner, _files(root))
        run.scan("after", scanner, _shm_files(shared))
        for path in secret.rglob("*.db*"):
            run.vaults[path.stem] = scanner.hits(path.read_bytes())
        run.kept = {p.stem: json.loads(p.read_text()) for p in secret.rglob("*.best")}
    finally:
        if process.stdin is not None:
            process.stdin.close()
        if process.poll() is None:
            process.terminate()  # Ray's processes follow their driver
            process.wait(20)
        shutil.rmtree(root, ignore_errors=True)
    return run


def of_control(hit: str) -> bool:
    return hit.startswith("control:")


def test_the_run_was_what_it_should_be(found: Found) -> None:
    assert found.made == {name: TRIALS + 1 for name in NAMES} | {"control": 3}
    assert found.facts["protected"]
    assert found.facts["released"] == 2
    assert found.facts["errors"] == len(NAMES)
    assert found.facts["trials"] == len(NAMES) * (TRIALS + 1)


@pytest.mark.parametrize("when", ["alive", "after"])
def test_no_byte_tells_what_an_agent_has_evaluated(when: str, found: Found) -> None:
    hits = {name: [h for h in hits if not of_control(h)] for name, hits in found.hits.items()}
    assert {n: h[:5] for n, h in hits.items() if h and n.startswith(when)} == {}


def test_the_server_holds_nothing_of_an_agent(found: Found) -> None:
    assert found.vaults["server"] == []


@pytest.mark.parametrize("agent", NAMES)
def test_an_agents_database_holds_its_own_trials_and_nobody_elses(
    agent: str, found: Found
) -> None:
    owners = {hit.split(":")[0] for hit in found.vaults[agent]}
    assert owners == {agent}


@pytest.mark.parametrize("agent", NAMES)
def test_an_agent_keeps_its_result(agent: str, found: Found) -> None:
    config, value = found.kept[agent]
    assert set(config) == {"x"}
    assert 0.1 < value < 1.0


@pytest.mark.parametrize(
    "part", ["result.json", "error.txt", "error.pkl", "searcher-state", "tuner.pkl", "objects/"]
)
def test_each_artefact_was_there_to_be_scanned(part: str, found: Found) -> None:
    own = {name for name in found.seen if "control" not in name}
    assert any(part in name for name in own)
    assert any("logs/worker" in name for name in own)
    assert any("shared memory" in name for name in own)


@pytest.mark.parametrize(
    "part", ["result.json", "error.txt", "error.pkl", "logs/worker", "stdout"]
)
def test_control_a_leak_is_found(part: str, found: Found) -> None:
    assert any(
        of_control(hit) for name, hits in found.hits.items() if part in name for hit in hits
    )
