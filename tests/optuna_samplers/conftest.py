"""Fixtures for tests of samplers."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest


@pytest.fixture(scope="session")
def empty_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with Optuna's tables: copying it is ten times as fast as creating one."""
    path = tmp_path_factory.mktemp("empty") / "study.db"
    storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
    storage.remove_session()
    storage.engine.dispose()
    return path
