"""Runs of :mod:`tests.drivers`, and runs on Optuna that many tests look into."""

from pathlib import Path

import pytest

_LATEST = {}


@pytest.fixture
def left(system, kind, name, tmp_path_factory):
    """What a run has left; it is run once, since the tests of a run stand side by side."""
    from tests.leaks.evidence import Evidence
    from tests.systems import SYSTEMS

    key = system, kind, name
    if key not in _LATEST:
        _LATEST.clear()
        storage, run = getattr(SYSTEMS[system], kind)[name]
        evidence = Evidence(Path(tmp_path_factory.mktemp("run")), storage)
        try:
            run(evidence)
        except Exception as error:  # its tests fail with it, and it is not run for each of them
            evidence.failed = error
        _LATEST[key] = evidence
    return _LATEST[key]


@pytest.fixture
def start(tmp_path):
    """Begins a run on a host that ends with its test."""
    from tests.drivers import begin

    runs = []

    def started(system, host, **more):
        runs.append(begin(system, host, tmp_path, **more))
        return runs[-1]

    yield started
    for run in runs:
        search = getattr(run, "search", None)
        if hasattr(search, "close"):
            search.close()
