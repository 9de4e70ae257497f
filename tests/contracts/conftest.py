"""Runs of :mod:`tests.drivers`."""

import pytest


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
