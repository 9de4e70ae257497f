"""Rows of the matrix that need a Ray of their own: another driver, a Job, a client.

Functions called scenes run in processes of their own (``tests.worker.script``) and write what came
out into a file.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import free_port
from tests.raytune_searchers.scenes import processes_of
from tests.worker import script

REPOSITORY = Path(__file__).parents[2]

PATIENCE = 600.0
"""Seconds after which a process counts as hung."""


# A cluster --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cluster:
    """One machine's Ray in processes of its own.

    Attributes:
        client: Address for Ray Client.
        jobs: Address for Ray Jobs.
        environment: For every process that shall reach it.
    """

    client: str
    jobs: str
    environment: dict[str, str]


def _environment():
    """Of processes that know this repository, and no Ray but those that a test gives them."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return kept | {
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONPATH": str(REPOSITORY),
        "OMP_NUM_THREADS": "1",
    }


@contextmanager
def cluster(*, dashboard):
    """Starts a cluster with a token of its own and ends all its processes afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="ry", dir="/tmp"))  # short: sockets lie in it
    port, client, page, agent = (free_port() for _ in range(4))
    own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    environment = _environment() | own
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block",
               f"--port={port}", f"--ray-client-server-port={client}", "--num-cpus=2",
               f"--include-dashboard={str(dashboard).lower()}", f"--dashboard-port={page}",
               f"--dashboard-agent-listen-port={agent}", f"--temp-dir={folder}",
               "--object-store-memory=100000000", "--disable-usage-stats"]  # fmt: skip
    with (folder / "said").open("wb") as said:
        head = subprocess.Popen(
            command, env=environment, stdout=said, stderr=said, start_new_session=True
        )
    try:
        for wanted in (client, *([page] if dashboard else [])):
            _wait_for(wanted, head, folder / "said")
        yield Cluster(f"ray://127.0.0.1:{client}", f"http://127.0.0.1:{page}", environment)
    finally:
        _end(head, folder)


def _wait_for(port, head, said):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and head.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.2)
    raise AssertionError(f"Ray did not start: {said.read_text()[-3000:]}")


def _end(head, folder):
    head.terminate()
    with suppress(subprocess.TimeoutExpired):
        head.wait(20)
    while left := processes_of(head.pid, folder):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
        head.poll()
    shutil.rmtree(folder, ignore_errors=True)


# Scenes -----------------------------------------------------------------------------------------


def told(scene, folder, environment=None, **job):
    """What a scene has written, run in a process of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "outcome.json").unlink(missing_ok=True)
    with (folder / "said").open("wb") as said:
        process = script(
            f"tests.contracts.tune_clusters:{scene}", {"folder": str(folder), **job},
            cwd=REPOSITORY, env=environment or _environment(), stdout=said, stderr=said,
        )  # fmt: skip
        process.wait(PATIENCE)
    return outcome_in(folder)


def outcome_in(folder):
    """What a scene has written."""
    path = folder / "outcome.json"
    assert path.exists(), (folder / "said").read_text()[-3000:]
    return json.loads(path.read_text())


def _write(folder, outcome):
    (folder / "outcome.json").write_text(json.dumps(outcome))


def _said(attempt):
    """What an attempt returns, or how it failed."""
    try:
        return attempt()
    except Exception as error:
        traceback.print_exc()
        return f"raised {type(error).__name__}: {' '.join(str(error).split())}"


def client_scene(folder, system, address):
    """One experiment by Ray Client."""
    import ray

    warnings.simplefilter("ignore")
    for patience in (1.0, 5.0, 0.0):  # a proxy that is slow to start under load gives up
        try:
            ray.init(address, log_to_driver=False, logging_level="ERROR")
            break
        except ConnectionError:
            if not patience:
                raise
            time.sleep(patience)
    _write(Path(folder), _said(lambda: _by_client(Path(folder), system)))


def _by_client(folder, name):
    from tests.contracts.tune_matrix import LEARNS_NOTHING
    from tests.contracts.tune_systems import SYSTEMS

    system = SYSTEMS[name]
    with system.job(folder) as job:
        results = job.tuner().fit()
        assert len(system.values(results)) == job.trials
        here, job.search = job.search, type(job.search).from_experiment(job.path)
        system.check(job, results)
        assert not here.history().answers
    return LEARNS_NOTHING


def job_scene(folder, system):
    """One experiment in a Ray Job."""
    import ray

    from tests.contracts.tune_systems import SYSTEMS

    warnings.simplefilter("ignore")
    ray.init(log_to_driver=False, logging_level="ERROR")

    def run():
        with SYSTEMS[system].job(Path(folder)) as job:
            SYSTEMS[system].check(job, job.tuner().fit())
        return "works"

    _write(Path(folder), _said(run))


def _own_ray():
    import ray

    from tests.raytune_searchers.conftest import INIT  # trials need no pytest

    warnings.simplefilter("ignore")
    folder = tempfile.mkdtemp(prefix="ry", dir="/tmp")
    ray.init(address="local", _temp_dir=folder, **INIT)
    return folder


def _vault(folder, durable):
    return f"sqlite:///{folder}/secret/vault.db" if durable else None


def interrupted_scene(folder, system, names, durable):
    """Experiments that Ctrl+C ends, one for each name of flags."""
    from tests.contracts.tune_matrix import interrupt
    from tests.contracts.tune_systems import SYSTEMS

    def run(place):
        place.mkdir()
        vault = _vault(place, durable)
        before = SYSTEMS[system].interrupted(os.getpid())
        with SYSTEMS[system].job(place, before, vault=vault) as job:
            interrupt(job, SYSTEMS[system])
        return "interrupted"

    ray_folder = _own_ray()
    places = {name: Path(folder) / str(i) for i, name in enumerate(names)}
    _write(Path(folder), {name: _said(lambda p=place: run(p)) for name, place in places.items()})
    shutil.rmtree(ray_folder, ignore_errors=True)


def restored_scene(folder, system, names, durable):
    """Goes on with each of them, in another process and on another Ray."""
    from tests.contracts.tune_matrix import FLAGS, after_restore
    from tests.contracts.tune_systems import SYSTEMS

    def run(place, name):
        with SYSTEMS[system].job(place, vault=_vault(place, durable)) as job:
            return after_restore(job, SYSTEMS[system], FLAGS[name])

    ray_folder = _own_ray()
    places = {name: Path(folder) / str(i) for i, name in enumerate(names)}
    outcomes = {name: _said(lambda p=place, n=name: run(p, n)) for name, place in places.items()}
    _write(Path(folder), outcomes)
    shutil.rmtree(ray_folder, ignore_errors=True)


def restored_elsewhere(folder, system, names, *, durable):
    """How experiments of each set of flags have gone on elsewhere, by the name of the flags."""
    job = {"system": system, "names": names, "durable": durable}
    begun = told("interrupted_scene", folder, **job)
    assert set(begun.values()) == {"interrupted"}, begun
    return told("restored_scene", folder, **job)


def submitted(own, folder, system):
    """How an experiment has gone that ``ray job submit`` has handed in."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = json.dumps({"folder": str(folder), "system": system})
    entry = [sys.executable, "-m", "tests.worker", "tests.contracts.tune_clusters:job_scene"]
    ray_job = [sys.executable, "-m", "ray.scripts.scripts", "job", "submit"]
    command = [*ray_job, "--address", own.jobs, "--", *entry, settings]
    done = subprocess.run(
        command, env=own.environment, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    (folder / "said").write_text(done.stdout + done.stderr)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return outcome_in(folder)
