"""The second process of every test that needs one.

Two kinds: :func:`children` (all at once, to their ends) and :func:`child` (one, by hand) fork
functions from a server that has imported everything once, which takes milliseconds;
:func:`script` begins a fresh interpreter, for what must not share a parent's memory or ends in a
group of its own (a driver of Ray, a terminal's command)::

    assert children(scenes.crash, (folder, "before commit")) == [-signal.SIGKILL]
    driver = script("tests.raytune_searchers.scenes:drive", {"folder": "x"})

``python -m tests.worker MODULE:FUNCTION JSON`` is what the latter runs.
"""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from multiprocessing.process import BaseProcess
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "numpy",
        "optuna",
        "optuna.storages._rdb.storage",
        "psycopg",
        "pytest",
        "sqlalchemy.dialects.postgresql.psycopg",
        "sqlalchemy.dialects.sqlite",
        "sqlalchemy.orm",
        "scipy.linalg",
        "scipy.optimize",
        "scipy.stats",
        "opendp.measurements",
        "optuna_samplers._local",
        "optuna_samplers.dp_fts_de",
        "optuna_samplers.dp_gibo",
        "optuna_samplers.duets",
        "optuna_samplers.ldp_gp_ucb",
        "optuna_samplers.po_gp_ucb",
        "privbo_plugins.store.tables",
        "privbo_plugins.federation",
        "privbo_plugins.sessions.server",
        "privbo_plugins.federation.listening",
    ]
)

PATIENCE = 120.0
"""Seconds after which a child counts as hung."""


def child(work: Callable[..., None], *job: Any) -> BaseProcess:
    """Begins one function; :func:`ended` waits for it."""
    process = CONTEXT.Process(target=work, args=job)
    process.start()
    return process


def ended(process: BaseProcess) -> int | None:
    """Exit code of a child once it has ended; one that hangs is killed and has None."""
    process.join(PATIENCE)
    code = process.exitcode
    process.kill()
    process.join()
    return code


def children(work: Callable[..., None], *jobs: tuple[Any, ...]) -> list[int | None]:
    """Runs a function once a job, all at the same time; exit codes, None for one that hangs."""
    return [ended(process) for process in [child(work, *job) for job in jobs]]


def script(target: str, settings: dict[str, Any], **popen: Any) -> subprocess.Popen[Any]:
    """Begins ``module:function`` with keyword arguments in a fresh interpreter.

    Args:
        target: What to run; both must be importable.
        settings: Its keyword arguments, JSON-ready.
        popen: Of :class:`subprocess.Popen`.
    """
    command = [sys.executable, "-m", "tests.worker", target, json.dumps(settings)]
    return subprocess.Popen(command, **({"stdin": subprocess.DEVNULL} | popen))


def main() -> None:
    """Runs what the command line names."""
    module, _, function = sys.argv[1].partition(":")
    getattr(import_module(module), function)(**json.loads(sys.argv[2]))


if __name__ == "__main__":
    main()
