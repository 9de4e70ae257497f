"""SIGKILL of an agent, the server or a whole driver in the middle of a round.

Every round is charged once and released once, whatever dies; what agents saw before is what they
see afterwards, and the studies go on to their end.
"""

import re
import shutil
import signal
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

from tests.leaks import Scanner
from tests.optuna_samplers.scenes import federations
from tests.optuna_samplers.scenes.federations import N_STARTUP, ledger, make_config, releases
from tests.worker import child, ended, lines

N_AGENTS, N_ROUNDS = 3, make_config().n_rounds
TOTAL = N_STARTUP + N_ROUNDS + 1
KILLED = -signal.SIGKILL

UNDONE = ("after draw", "before commit")
"""Points at which a draw has been made and nothing of it is kept."""


@pytest.fixture
def folder():
    """A short path: a socket's may have 107 characters."""
    with tempfile.TemporaryDirectory(prefix="fed-") as name:
        yield Path(name)


class Places:
    """Where the vault and the agents' studies lie.

    Args:
        folder: For files.
        empty: A study file to copy.
        database: URL of a database that holds everything; None for SQLite, a file each.
    """

    def __init__(self, folder, empty, database):
        self.folder, self.on_sqlite = folder, database is None
        self.vault = database or f"sqlite:///{folder}/vault.db"
        self.studies = [database or f"sqlite:///{folder}/agent-{n}.db" for n in range(N_AGENTS)]
        if database is None:
            for n in range(N_AGENTS):
                shutil.copy(empty, folder / f"agent-{n}.db")
        else:  # Optuna's tables first: processes that create them at once fail
            storage = optuna.storages.RDBStorage(database)
            storage.remove_session()
            storage.engine.dispose()

    def check(self, before):
        """What must hold at every moment; returns the releases."""
        seen, earlier = lines(self.folder / "seen"), ledger(self.vault)
        now = releases(self.vault)  # after what was seen of it: a round may just be ending
        assert set(earlier) <= set(now) <= set(ledger(self.vault))  # a server may be at work
        assert before.items() <= now.items()
        for _, t, weights in seen:
            assert now[str(t)] == weights
        return now

    def lost(self, known):
        """A scanner for the outcomes of draws that no release holds."""
        scanner, kept = Scanner(), [np.ravel(weights) for weights in known.values()]
        noise = [np.array(values) for _, values in lines(self.folder / "draws")]
        config = make_config()
        for i, values in enumerate(noise):
            made = values * (1 / config.n_agents / config.q)  # one region: of weight 1/N each
            if not any(np.allclose(made, weights, rtol=1e-9, atol=0) for weights in kept):
                for value in [*values, *made]:
                    scanner.add_raw(f"draw {i}", value)
        return scanner

    def check_finished(self, before):
        """All rounds, once; all trials, of which a death may have left one or two running."""
        now = self.check(before)
        assert sorted(now) == [str(t) for t in range(1, N_ROUNDS + 1)] == ledger(self.vault)
        for trials, _ in self.read_studies():
            states = Counter(trial.state for trial in trials)
            assert states.total() >= TOTAL
            assert states[TrialState.RUNNING] <= 1
            assert states.total() == states[TrialState.COMPLETE] + states[TrialState.RUNNING]

    def read_studies(self):
        """Trials and attributes of every agent's study."""
        for n, url in enumerate(self.studies):
            storage = optuna.storages.RDBStorage(url)
            study = optuna.load_study(study_name=f"agent-{n}", storage=storage)
            yield study.trials, study.user_attrs
            storage.remove_session()
            storage.engine.dispose()

    def files(self):
        return {p.name: p.read_bytes() for p in self.folder.glob("*.db*")}


# The whole driver -------------------------------------------------------------------------------

IN_DRIVER = ("after adding", "before commit", "after commit", "before sending", "in the objective")


def _driver(places, point):
    arguments = places.folder, places.vault, places.studies, N_ROUNDS + 1
    assert ended(child(federations.drive, *arguments, point)) == KILLED
    before = places.check({})
    assert ("2" in before) == (point in ("after commit", "after receiving", "in the objective"))
    lost = places.lost(before)
    assert bool(len(lost)) == (point in UNDONE)
    assert lost.scan(places.files()) == []

    assert ended(child(federations.drive, *arguments)) == 0
    places.check_finished(before)
    drawn = Counter(t for t, _ in lines(places.folder / "draws"))
    assert drawn == Counter({1: 1, 2: 1 + (point in UNDONE), 3: 1})
    assert lost.scan(places.files()) == []
    for trials, attributes in places.read_studies():
        assert len(trials) == TOTAL
        said = attributes["privbo:guarantee"]
        assert re.search(r"at most epsilon = [\d.]+ in 3 rounds", said), said


@pytest.mark.slow
@pytest.mark.parametrize("point", IN_DRIVER)
def test_the_driver_is_killed(point, folder, empty_study):
    _driver(Places(folder, empty_study, None), point)


@pytest.mark.slow
def test_the_driver_is_killed_on_postgresql(folder, empty_study, postgres_database):
    _driver(Places(folder, empty_study, postgres_database), "after draw")


@pytest.mark.slow
def test_control_the_scan_finds_draws_that_are_kept(folder, empty_study):
    places = Places(folder, empty_study, None)
    assert ended(child(federations.drive, folder, places.vault, places.studies, N_ROUNDS + 1)) == 0
    places.check_finished({})
    found = " ".join(places.lost({}).scan(places.files()))
    assert all(f"vault.db: draw {t}" in found for t in range(N_ROUNDS))
    assert not len(places.lost(releases(places.vault)))
