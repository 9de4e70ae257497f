"""Runs of :mod:`tests.drivers`, and runs on Optuna that many tests look into."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.leaks.evidence import Evidence
from tests.systems import SYSTEMS

_LATEST: dict[tuple[str, str, str], Evidence] = {}


@pytest.fixture
def left(system: str, kind: str, name: str, tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    """What a run has left; it is run once, since the tests of a run stand side by side."""
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
def start(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Begins a run on a host that ends with its test."""
    from tests.drivers import begin

    runs: list[Any] = []

    def started(system: str, host: str, **more: Any) -> Any:
        runs.append(begin(system, host, tmp_path, **more))
        return runs[-1]

    yield started
    for run in runs:
        search = getattr(run, "search", None)
        if hasattr(search, "close"):
            search.close()
