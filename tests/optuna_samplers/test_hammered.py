"""Many workers on PostgreSQL of which one is killed every second: one release a trial."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.optuna_samplers.scenes.hammered import hammer


@pytest.fixture
def databases(postgres_url: str) -> Iterator[tuple[str, str]]:
    """One for the study, one for the vault."""
    import psycopg

    names = [f"h{uuid.uuid4().hex[:12]}" for _ in range(2)]
    admin, base = postgres_url.replace("+psycopg", ""), postgres_url.rsplit("/", 1)[0]
    with psycopg.connect(admin, autocommit=True) as connection:
        for name in names:
            connection.execute(f'CREATE DATABASE "{name}"')
    yield f"{base}/{names[0]}", f"{base}/{names[1]}"
    with psycopg.connect(admin, autocommit=True) as connection:
        for name in names:
            connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def check(found: dict[str, int], n_trials: int) -> None:
    wrong = ("lost", "double", "not as released", "charged and not released")
    assert {name: found[name] for name in wrong} == dict.fromkeys(wrong, 0)
    assert found["trials"] == found["charged"] == found["links"] >= n_trials - 200
    assert found["kills"] > 0


@pytest.mark.slow
def test_killed_workers_lose_nothing_and_release_nothing_twice(
    databases: tuple[str, str],
) -> None:
    check(hammer(*databases, n_trials=16, n_workers=3, every=1.0), 16)


@pytest.mark.soak
def test_ten_thousand_trials_by_eight_workers_of_which_one_is_killed_every_second(
    databases: tuple[str, str], capfd: Any
) -> None:
    with capfd.disabled():
        found = hammer(*databases, n_trials=10_000, n_workers=8, every=1.0, n_studies=10)
        print(json.dumps(found))
    check(found, 10_000)
