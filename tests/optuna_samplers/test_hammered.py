"""Many workers on PostgreSQL of which one is killed every second: one release a trial."""

import json
import uuid

import pytest

from tests.conftest import databases
from tests.optuna_samplers.scenes.hammered import hammer


@pytest.fixture
def pair(postgres_url):
    """A database for the study, and one for the vault."""
    with databases(postgres_url, *(f"h{uuid.uuid4().hex[:12]}" for _ in range(2))) as urls:
        yield urls


def check(found, n_trials):
    wrong = ("lost", "double", "not as released", "charged and not released")
    assert {name: found[name] for name in wrong} == dict.fromkeys(wrong, 0)
    assert found["trials"] == found["charged"] == found["links"] >= n_trials - 200
    assert found["kills"] > 0


@pytest.mark.slow
def test_killed_workers_lose_nothing_and_release_nothing_twice(pair):
    check(hammer(*pair, n_trials=16, n_workers=3, every=1.0), 16)


@pytest.mark.soak
def test_ten_thousand_trials_by_eight_workers_of_which_one_is_killed_every_second(pair, capfd):
    with capfd.disabled():
        found = hammer(*pair, n_trials=10_000, n_workers=8, every=1.0, n_studies=10)
        print(json.dumps(found))
    check(found, 10_000)
