"""The second process of every test that needs one.

Two kinds: :func:`children` (all at once, to their ends), :func:`child` (one, by hand) and
:func:`printed` (one, for what it prints) fork functions from a server that has imported everything
once, which takes milliseconds; :func:`script` begins a fresh interpreter, for what must not share
a parent's memory or ends in a group of its own (a driver of Ray, a terminal's command)::

    assert children(scenes.crash, (folder, "before commit")) == [-signal.SIGKILL]
    driver = script("tests.raytune_searchers.scenes:drive", {"folder": "x"})

``python -m tests.worker MODULE:FUNCTION JSON`` is what the latter runs.
"""

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "numpy", "optuna", "optuna.storages._rdb.storage", "matplotlib.figure", "psycopg",
        "pytest", "sklearn.ensemble", "sklearn.svm", "sqlalchemy.dialects.postgresql.psycopg",
        "sqlalchemy.dialects.sqlite", "sqlalchemy.orm", "scipy.linalg", "scipy.optimize",
        "scipy.stats", "opendp.measurements", "optuna_samplers._local",
        "optuna_samplers.dp_fts_de", "optuna_samplers.dp_gibo", "optuna_samplers.duets",
        "optuna_samplers.ldp_gp_ucb", "optuna_samplers.po_gp_ucb",
        "privbo_plugins.store.tables", "privbo_plugins.federation",
        "privbo_plugins.sessions.server", "privbo_plugins.federation.listening",
    ]
)  # fmt: skip

PATIENCE = 120.0
"""Seconds after which a child counts as hung."""


def child(work, *job):
    """Begins one function; :func:`ended` waits for it."""
    process = CONTEXT.Process(target=work, args=job)
    process.start()
    return process


def ended(process, patience=PATIENCE):
    """Exit code of a child once it has ended; one that hangs is killed and has None."""
    process.join(patience)
    code = process.exitcode
    process.kill()
    process.join()
    return code


def children(work, *jobs):
    """Runs a function once a job, all at the same time; exit codes, None for one that hangs."""
    return [ended(process) for process in [child(work, *job) for job in jobs]]


def _apart(work, job, folder, environment, to):
    """Runs as a program of its own would, in a folder, with what it prints in two files."""
    os.chdir(folder)
    os.environ.update(environment)
    sys.path.insert(0, str(folder))
    sys.argv[1:] = []
    for stream in (1, 2):
        with (to / str(stream)).open("wb") as file:
            os.dup2(file.fileno(), stream)
    work(*job)


def printed(work, *job, folder, environment, patience):
    """What a function prints in a child with a folder, an environment and streams of its own.

    Raises:
        AssertionError: If it fails, with the end of what it said.
    """
    with tempfile.TemporaryDirectory() as place:
        to = Path(place)
        code = ended(child(_apart, work, job, folder, environment, to), patience)
        assert code == 0, f"{code}: {(to / '2').read_text()[-3000:]}"
        return (to / "1").read_text()


def script(target, settings, **popen):
    """Begins ``module:function`` with keyword arguments in a fresh interpreter.

    Args:
        target: What to run; both must be importable.
        settings: Its keyword arguments, JSON-ready.
        popen: Of :class:`subprocess.Popen`.
    """
    command = [sys.executable, "-m", "tests.worker", target, json.dumps(settings)]
    return subprocess.Popen(command, **({"stdin": subprocess.DEVNULL} | popen))


def append(path, line):
    """One line of JSON, on the disk when this returns."""
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


def lines(path):
    """What was appended, by processes of which any may have been killed."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def first_time(path):
    """Whether nobody has said this before, in any process."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def main():
    """Runs what the command line names."""
    module, _, function = sys.argv[1].partition(":")
    getattr(import_module(module), function)(**json.loads(sys.argv[2]))


if __name__ == "__main__":
    main()
