"""Trainables that fail at a given point of a given trial, and a driver that they kill.

:func:`run_until_killed` runs an experiment that kills its driver in a process and a Ray of its
own; the test that began it goes on from what it leaves behind.
"""

import json
import os
import pickletools
import pkgutil
import shutil
import signal
import tempfile
import time
import warnings
from contextlib import suppress
from pathlib import Path

import ray
from ray import tune

from privbo_plugins.privacy.noise import SecureNoise
from tests.raytune_searchers.runs import LINE, make_search, squares, tuner
from tests.worker import append, first_time, script

TRIAL, DRIVER, RAISE, KILL_VAULT = "trial", "driver", "raise", "kill the vault's process"
"""What happens: the trial's process or the driver is killed, the trainable raises, and so on."""

BEFORE, STORED, REPORTED = "before", "stored", "reported"
"""Where: before the vault knows of the losses, once it does, once Tune has the value."""


def turn_of(folder, trial):
    """The trial's number in the order in which trials began; its retries keep it."""
    known = folder / f"turn-of-{trial}"
    if not known.exists():
        turn = next(n for n in range(10_000) if first_time(folder / f"turn-{n}"))
        known.write_text(str(turn))
    return int(known.read_text())


class CountedNoise(SecureNoise):
    """Writes down every draw before it is handed on."""

    def __init__(self, folder):
        super().__init__()
        self.file = folder / "draws"

    def __getstate__(self):
        return {"file": self.file}

    def __setstate__(self, state):
        self.file = state["file"]

    def add_gaussian(self, value, scale):
        noisy = super().add_gaussian(value, scale)
        append(self.file, noisy.tolist())
        return noisy


def kill_vault(name):
    """Kills the process of a vault's actor."""
    actor = ray.get_actor(name, namespace="privbo")
    pid = ray.get(actor.__ray_call__.remote(lambda _host: os.getpid()))
    os.kill(pid, signal.SIGKILL)
    while Path(f"/proc/{pid}").exists():
        time.sleep(0.02)


STATE = ("experiment_state-*.json", "search_gen_state-*.json", "searcher-state-*.pkl")
"""What ``Tuner.restore`` reads; the second is a pickle, whatever its name says."""


def kill_driver(driver, experiment):
    """Kills a driver wherever it is, except where Tune's files are cut short.

    Tune copies them over those that a restore reads: a driver that dies meanwhile leaves empty
    ones, from which Tune begins anew and forgets ``num_samples``. What a trial did before is in
    the files where Tune saves all the time.
    """
    now = time.time() if os.environ.get("TUNE_GLOBAL_CHECKPOINT_S") == "0" else 0.0
    while True:
        stop(driver)
        if restorable(experiment, since=now):
            break
        os.kill(driver, signal.SIGCONT)
        time.sleep(0.1)
    os.kill(driver, signal.SIGKILL)
    time.sleep(600)


def stop(pid):
    """Until each thread of a process stands still."""
    os.kill(pid, signal.SIGSTOP)
    for _ in range(500):
        with suppress(OSError):  # a thread that has just ended
            stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
            if all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats):
                return
        time.sleep(0.01)


def restorable(experiment, since):
    """Whether all files of an experiment are complete and no older than that."""
    found = [path for pattern in STATE for path in experiment.glob(pattern)]
    if len(found) < len(STATE) or any(path.stat().st_mtime < since for path in found):
        return False
    try:
        json.loads(found[0].read_text())
        for path in found[1:]:
            list(pickletools.genops(path.read_bytes()))
    except ValueError:
        return False
    return True


def strike(folder, faults, point, driver=0, vault=""):
    """Does once what shall happen at this point of this trial."""
    turn = turn_of(folder, tune.get_context().get_trial_id())
    what = faults.get((turn, point))
    if what is None or not first_time(folder / f"struck-{turn}-{point}"):
        return
    if what == KILL_VAULT:
        kill_vault(vault)
    elif what == RAISE:
        raise KeyError("Jane Doe")
    elif what == DRIVER:
        kill_driver(driver, folder / "run")
    else:
        os.kill(os.getpid(), signal.SIGKILL)


def faulty(wrap, folder, faults, function=squares, vault=""):
    """A private trainable that notes each training and fails once at each of the given points.

    Args:
        wrap: Makes the function private.
        folder: For notes.
        faults: What happens, by (trial, point).
        function: Of a config.
        vault: Name of the vault's actor, where it is killed.
    """
    driver = os.getpid()

    def measured(config):
        append(folder / "trained", turn_of(folder, tune.get_context().get_trial_id()))
        strike(folder, faults, BEFORE, driver, vault)
        return function(config)

    private = wrap(measured)

    def trainable(config):
        released = private(config)
        strike(folder, faults, STORED, driver, vault)
        tune.report(released)
        strike(folder, faults, REPORTED, driver, vault)

    return trainable


def own_ray(folder):
    """Starts the Ray of a driver in a process of its own, which warns of nothing."""
    from tests.raytune_searchers.conftest import INIT  # trials need no pytest

    warnings.simplefilter("ignore")
    ray.init(_temp_dir=folder, **INIT)


def dies_at_the_third(folder):
    """An experiment whose third trial kills its driver before its losses are stored."""
    search = make_search(
        n_starts=1, n_steps=1, memory=-1, vault=f"sqlite:///{folder}/vault.db", run_name="r",
        noise=CountedNoise(folder),
    )  # fmt: skip
    trainable = faulty(search.private, folder, {(2, BEFORE): DRIVER})
    return tuner(search, trainable, folder, param_space=LINE, max_concurrent_trials=1)


def drive(experiment, folder, ray_folder):
    """Runs an experiment in this process."""
    own_ray(ray_folder)
    pkgutil.resolve_name(experiment)(Path(folder)).fit()


# For the test -----------------------------------------------------------------------------------


def run_until_killed(experiment, folder):
    """Runs an experiment in a process of its own until it is killed, then ends what its Ray left.

    Args:
        experiment: A function of a module of scenes that makes its Tuner.
        folder: The function's argument.
    """
    named = f"{experiment.__module__}:{experiment.__name__}"
    ray_folder = Path(tempfile.mkdtemp(prefix="ry", dir="/tmp"))
    said = ray_folder / "said"
    with said.open("wb") as stderr:
        driver = script(
            "tests.raytune_searchers.scenes:drive",
            {"experiment": named, "folder": str(folder), "ray_folder": str(ray_folder)},
            stdout=stderr, stderr=stderr, start_new_session=True,
        )  # fmt: skip
    try:
        assert driver.wait() == -signal.SIGKILL, said.read_text()[-3000:]
    finally:
        while left := processes_of(driver.pid, ray_folder):
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
            driver.poll()
        shutil.rmtree(ray_folder, ignore_errors=True)


def processes_of(session, folder):
    """Processes of a session, and those whose command names a folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes()
            of_session = (entry / "stat").read_text().rpartition(")")[2].split()[3]
        except OSError:
            continue
        if of_session == str(session) or str(folder).encode() in command:
            found.append(int(entry.name))
    return found
