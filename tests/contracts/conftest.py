"""Runs on Optuna, once each, for all tests that look into what they leave."""

from __future__ import annotations

from pathlib import Path

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
