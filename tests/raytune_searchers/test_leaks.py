"""Nothing private in any byte that an experiment or its Ray leaves behind.

Every artefact is scanned while Ray is alive and again after its shutdown: the experiments, Ray's
whole session folder, its object store, the home and temporary folders, what the driver printed,
and everything that a user can pickle. The control leaks in every way and must be found.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray", reason="Ray is not installed (the ray extra)")

from raytune_searchers._channel import BLOCK_BYTES
from tests.leaks import Scanner
from tests.raytune_searchers.leak_driver import (
    ALONE,
    LEAKS,
    MANY,
    WAYS,
    WILD_TRIALS,
    N,
    sentinels,
    token,
)

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]

FIRST_SCALAR = b"\x15"
"""What stands before a scalar, four bytes, in a TensorBoard file."""


# What is scanned ------------------------------------------------------------------------------


def address(key: bytes) -> str:
    """What is secret in the vault's URL."""
    return token(key, "vault")


def _parts(y: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Neighbours from every part of a vector: its ends and the borders of its blocks."""
    size = BLOCK_BYTES // 8
    for start in {0, 60, len(y) - 8, *range(size - 4, len(y) - 8, size)}:
        yield start, y[start : start + 8]


class Wanted:
    """Every loss that a run made, and every patient's name, as far as they are scanned for."""

    def __init__(self, secret: Path, public: list[float]) -> None:
        self.scanner = Scanner()
        self.calls = 0
        self.scalars: dict[bytes, str] = {}
        key = (secret / "key").read_bytes()
        self.scanner.add_text("the vault's address", address(key))
        for line in (secret / "calls").read_text().splitlines():
            call, n = line.split()
            self._add(token(key, call), sentinels(key, call, int(n)))
        self.scanner.allow(public)

    def _add(self, name: str, y: np.ndarray) -> None:
        self.calls += 1
        self.scanner.add_text(f"name {self.calls}", name)
        mean = float(np.mean(y))
        for start, part in _parts(y):
            self.scanner.add_vector(f"losses {self.calls} from {start} of {len(y)}", part)
        self.scanner.add_number(f"mean of losses {self.calls}", mean)
        for value in (mean, *(float(v) for _, part in _parts(y) for v in part)):
            pattern = FIRST_SCALAR + struct.pack("<f", value)
            self.scalars[pattern] = f"scalar of losses {self.calls}"

    def hits(self, name: str, blob: bytes) -> list[str]:
        found = self.scanner.hits(blob)
        if "tfevents" in name:
            found += [sentinel for pattern, sentinel in self.scalars.items() if pattern in blob]
        return found


def _files(root: Path) -> Iterator[tuple[str, bytes]]:
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder) / name
            if path.is_file() and not path.is_symlink():
                yield str(path.relative_to(root)), path.read_bytes()


def _written_parts(file: int) -> Iterator[bytes]:
    """The parts of a sparse file that were ever written."""
    end, start = os.fstat(file).st_size, 0
    while start < end:
        try:
            start = os.lseek(file, start, os.SEEK_DATA)
        except OSError:  # nothing but a hole is left
            return
        stop = os.lseek(file, start, os.SEEK_HOLE)
        yield os.pread(file, stop - start, start)
        start = stop


def _shared_memory(root: Path) -> Iterator[tuple[str, bytes]]:
    """What the processes of a run hold in /dev/shm: Ray unlinks the object store's file."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(root).encode() not in (process / "cmdline").read_bytes():
                continue
            links = {fd: os.readlink(fd) for fd in (process / "fd").iterdir()}
        except OSError:  # it has ended
            continue
        for fd, target in links.items():
            if target.startswith("/dev/shm/"):
                file = os.open(fd, os.O_RDONLY)
                yield f"shared memory {process.name} {target}", b"".join(_written_parts(file))
                os.close(file)


@dataclass
class Run:
    """One run of the driver, and what was found of its secrets.

    Attributes:
        facts: What the driver tells.
        hits: "when/artefact" to what was found in it.
        sizes: "when/artefact" to its bytes.
        vault: What was found in the vault's file.
        vault_bytes: Size of that file.
        calls: Number of vectors that were made.
    """

    facts: dict[str, Any] = field(default_factory=dict)
    hits: dict[str, list[str]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    vault: list[str] = field(default_factory=list)
    vault_bytes: int = 0
    calls: int = 0

    def scan(self, when: str, wanted: Wanted, blobs: Iterator[tuple[str, bytes]]) -> None:
        for name, blob in blobs:
            self.sizes[f"{when}/{name}"] = len(blob)
            if found := wanted.hits(name, blob):
                self.hits[f"{when}/{name}"] = found

    def where(self, *parts: str) -> list[str]:
        """What was found in artefacts with all of these parts in their names."""
        named = [name for name in self.hits if all(part in name for part in parts)]
        return [hit for name in named for hit in self.hits[name]]

    def seen(self, *parts: str) -> bool:
        """Whether an artefact with these parts in its name was scanned and is not empty."""
        return any(n > 0 and all(p in name for p in parts) for name, n in self.sizes.items())


def _shm_files(known: set[Path]) -> Iterator[tuple[str, bytes]]:
    for path in set(Path("/dev/shm").iterdir()) - known:
        try:
            if path.is_file() and path.stat().st_size < 2**28:
                yield f"new in shared memory {path.name}", path.read_bytes()
        except OSError:  # another program's, and gone
            continue


def _wait_for(path: Path, process: subprocess.Popen[str], log: Path) -> None:
    for _ in range(4000):
        if path.exists() and path.read_text().endswith("}"):
            return
        if process.poll() is not None:
            break
        time.sleep(0.1)
    raise AssertionError(f"The driver did not get to its end: {log.read_text()[-3000:]}")


def run_driver(module: str, kind: str, secret: Path) -> Run:
    """Runs a driver and scans what it leaves, while its Ray lives and after its end."""
    root, run = Path(tempfile.mkdtemp(prefix="lk", dir="/tmp")), Run()
    for name in ("home", "tmp", "objects"):
        (root / name).mkdir()
    key = secret / "key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(32))
    shared = set(Path("/dev/shm").iterdir())
    environment = os.environ | {
        "HOME": str(root / "home"),
        "TMPDIR": str(root / "tmp"),
        "LEAK_SECRET": str(secret),
        "LEAK_VAULT": f"sqlite:///{secret}/vault-{address(key.read_bytes())}.db",
        "PYTHONPATH": str(REPOSITORY),
        "OMP_NUM_THREADS": "1",
    }
    environment.pop("RAY_ADDRESS", None)
    with (root / "stdout").open("w") as out, (root / "stderr").open("w") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", f"tests.raytune_searchers.{module}", kind, str(root)],
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
        public = [v for facts in run.facts.values() for v in facts["public"]]
        wanted = Wanted(secret, public)
        run.calls = wanted.calls
        run.scan("alive", wanted, _files(root))
        run.scan("alive", wanted, _shared_memory(root))
        process.communicate("\n", timeout=60)
        run.scan("after", wanted, _files(root))
        run.scan("after", wanted, _shm_files(shared))
        for path in secret.glob("vault*"):
            run.vault_bytes += path.stat().st_size
            run.vault += wanted.scanner.hits(path.read_bytes())
    finally:
        if process.stdin is not None:
            process.stdin.close()
        if process.poll() is None:
            process.terminate()  # Ray's processes follow their driver
            process.wait(20)
        shutil.rmtree(root, ignore_errors=True)
    return run


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_driver("leak_driver", "private", tmp_path_factory.mktemp("secret"))


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_driver("leak_driver", "control", tmp_path_factory.mktemp("secret"))


ARTEFACTS = {
    "result.json": ("experiments", "result.json"),
    "progress.csv": ("experiments", "progress.csv"),
    "TensorBoard": ("experiments", "tfevents"),
    "experiment state": ("experiments", "experiment_state"),
    "searcher's state": ("experiments", "searcher-state"),
    "error.txt": ("experiments", "error.txt"),
    "error.pkl": ("experiments", "error.pkl"),
    "Ray's copies of results": ("ray/", "driver_artifacts", "result.json"),
    "logs of workers, stdout": ("ray/", "logs/worker", ".out"),
    "logs of workers, stderr": ("ray/", "logs/worker", ".err"),
    "stdout": ("/stdout",),
    "stderr": ("/stderr",),
    "pickled search": ("objects", "search.pickle"),
    "cloudpickled search": ("objects", "search.cloudpickle"),
    "dataframe of results": ("objects", "frame.csv"),
    "shown results": ("objects", "shown.txt"),
    "exceptions": ("objects", "errors.txt"),
    "pickled exceptions": ("objects", "errors.pickle"),
}
"""Where the control leaks, alive and after the shutdown alike."""

ALIVE_ONLY = {"object store": ("shared memory",)}

HARMLESS = {
    "tuner.pkl": ("experiments", "tuner.pkl"),
    "params.json": ("experiments", "params.json"),
    "params.pkl": ("experiments", "params.pkl"),
    "Ray's logs": ("ray/", "logs/raylet.out"),
    "home": ("home/",),
}
"""What else must be there to be scanned."""


# Controls -------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["alive", "after"])
@pytest.mark.parametrize("parts", ARTEFACTS.values(), ids=ARTEFACTS.keys())
def test_control_a_leak_is_found_in_each_artefact(
    when: str, parts: tuple[str, ...], control: Run
) -> None:
    assert control.facts["control"]["trials"] == control.calls - 1 == len(LEAKS)
    assert control.where(f"{when}/", *parts)


def test_control_a_vector_in_the_object_store_is_found(control: Run) -> None:
    hits = control.where("alive/shared memory")
    assert any(f"of {MANY}" in hit and "float64< bytes" in hit for hit in hits)


def test_control_notes_in_the_home_folder_are_found(control: Run) -> None:
    assert control.where("home/")


def test_control_a_vector_is_found_as_the_hex_of_its_pickle(control: Run) -> None:
    hits = control.where("experiments", "experiment_state")
    assert any("float64< hex" in hit for hit in hits)


def test_control_a_mean_is_found_in_results_and_in_tensorboard_files(control: Run) -> None:
    assert any("mean of" in hit for hit in control.where("experiments", "result.json"))
    assert any("scalar of" in hit for hit in control.where("experiments", "tfevents"))


def test_control_the_address_of_a_vault_is_found(control: Run) -> None:
    assert "the vault's address as text bytes" in control.where("after/stdout")


def test_control_a_config_that_was_changed_is_found(control: Run) -> None:
    with_config = [name for name in control.hits if "result.json" in name]
    assert len({name.split("/")[-2] for name in with_config}) == 2  # reported, and mutated


# Private runs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["alive", "after"])
@pytest.mark.parametrize("experiment", ["small", "big", "wild"])
def test_an_experiment_and_what_a_user_holds_of_it_keep_no_private_byte(
    experiment: str, when: str, private: Run
) -> None:
    hits = {n: h[:5] for n, h in private.hits.items() if n.startswith(when) and experiment in n}
    assert hits == {}


@pytest.mark.parametrize("when", ["alive", "after"])
def test_nothing_else_keeps_a_private_byte(when: str, private: Run) -> None:
    names = [n for n in private.hits if n.startswith(when)]
    others = [n for n in names if not any(part in n for part in ("small", "big", "wild"))]
    assert {n: private.hits[n][:5] for n in others} == {}


@pytest.mark.parametrize("parts", (ARTEFACTS | ALIVE_ONLY | HARMLESS).values())
def test_each_artefact_was_there_to_be_scanned(parts: tuple[str, ...], private: Run) -> None:
    assert private.seen("alive/", *parts)


def test_a_run_was_small_and_one_had_several_blocks(private: Run) -> None:
    assert MANY * 8 > 3 * BLOCK_BYTES
    for name in ("small", "big"):
        facts = private.facts[name]
        assert facts["errors"] == 0
        assert facts["trials"] == 7
        assert facts["protected"]
        assert facts["charges"] > 0


def test_losses_of_released_steps_are_gone_from_the_vault(private: Run) -> None:
    assert private.facts["small"]["held"] == []
    assert private.facts["big"]["held"] == []
    assert private.vault_bytes > 0
    assert private.vault == []


def test_trials_failed_in_every_way(private: Run) -> None:
    facts = private.facts["wild"]
    assert facts["trials"] == WILD_TRIALS
    assert facts["errors"] == 1 + len(ALONE)
    assert facts["protected"]
    retried = 1
    assert private.calls == 7 + (7 + retried) + (len(WAYS) + len(ALONE) + 2)
    assert N > 100
