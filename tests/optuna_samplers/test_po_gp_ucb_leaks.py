"""No row of the curator's table in any byte that a modeler, or the study, ever holds."""

from __future__ import annotations

import importlib
import io
import logging
import os
import pickle
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

from optuna_samplers import POGPUCBSampler, answer_trials
from privbo_plugins.algorithms.po_gp_ucb import Curator
from tests.leaks import Scanner, exception_leaks
from tests.optuna_samplers.curator_worker import FAILS, log_everything, open_storage

N, D = 40, 2


class Secrets:
    """Rows and outcomes that no public number resembles, and a text that goes with them."""

    def __init__(self) -> None:
        rng = np.random.default_rng(secrets.randbits(64))
        self.X = rng.uniform(0.11, 0.99, size=(N, D))
        self.y = rng.uniform(0.11, 0.99, size=N)
        self.token = f"patient-{secrets.token_hex(8)}"
        self.rows, self.outcomes = Scanner(), Scanner()
        self.rows.add_text("token", self.token)
        self.rows.add_vector("X", self.X.ravel())
        for i, x in enumerate(self.X.ravel()):
            self.rows.add_raw(f"scaled X[{i}]", x - 0.5)  # as the mechanism sees it
        self.outcomes.add_vector("y", self.y)

    def write(self, folder: Path) -> None:
        np.savez(folder / "rows.npz", X=self.X, y=self.y, token=np.array(self.token))


@pytest.fixture
def debug_log() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    before = {
        name: logging.getLogger(name).level
        for name in ("optuna", "sqlalchemy.engine", "sqlalchemy.pool", "sqlalchemy.orm", "alembic")
    }
    handler = log_everything(stream)
    yield stream
    for name, level in before.items():
        logging.getLogger(name).removeHandler(handler)
        logging.getLogger(name).setLevel(level)


class Sides:
    """A curator in another process, and a modeler in this one; collects what they leave."""

    def __init__(self, folder: Path, how: str) -> None:
        self.secrets = Secrets()
        self.private, self.shared = folder / "private", folder / "shared"
        self.private.mkdir()
        self.shared.mkdir()
        self.secrets.write(self.private)
        self.artefacts: dict[str, bytes] = {}
        self.storage = open_storage(self.shared)
        self.study = optuna.create_study(
            storage=self.storage, study_name="s", direction="maximize"
        )
        root = Path(__file__).parents[2]
        module = "tests.optuna_samplers.curator_worker"
        self.console = {name: folder / name for name in ("stdout", "stderr")}
        streams = {name: path.open("wb") for name, path in self.console.items()}
        self.curator = subprocess.Popen(
            [sys.executable, "-m", module, str(self.private), str(self.shared), how],
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root), "PYTHONWARNINGS": "ignore"},
            **streams,
        )
        for stream in streams.values():
            stream.close()

    def _wait(self, done: Any) -> None:
        for _ in range(1200):
            if done():
                return
            if self.curator.poll() is not None:
                break
            time.sleep(0.05)
        raise RuntimeError(f"The curator has ended, or takes too long: {self.said()}")

    def said(self) -> dict[str, bytes]:
        """What the curator's process has printed."""
        return {f"curator's {name}": path.read_bytes() for name, path in self.console.items()}

    def run(self, n_trials: int) -> POGPUCBSampler:
        """Asks for rows, one of which has no outcome, and waits for the curator's answers."""
        self._wait((self.shared / "table.npz").exists)
        sampler = POGPUCBSampler(self.shared / "table.npz", seed=0)
        self.study.sampler = sampler
        self.study.enqueue_trial({"row": FAILS})
        for number in range(n_trials):
            self.study.ask().suggest_int("row", 0, N - 1)
            self._wait(lambda number=number: self.study.trials[number].state.is_finished())
        return sampler

    def stop(self) -> None:
        (self.shared / "stop").touch()
        self.curator.wait(60)
        self.artefacts |= self.said()

    def collect(self, sampler: POGPUCBSampler, log: io.StringIO) -> None:
        for path in [*self.shared.iterdir(), self.private / "vault.db"]:
            self.artefacts[path.name] = path.read_bytes()
        guarantee = sampler.guarantee(self.study)
        things = {
            "study": self.study,
            "sampler": sampler,
            "trials": self.study.trials,
            "guarantee": guarantee,
            "recommendation": sampler.recommend(self.study),
            "algorithm": sampler._state(self.study).algorithm,
            "table": sampler._config.Z.tobytes() + repr(sampler._config.Z.tolist()).encode(),
        }
        for name, thing in things.items():
            self.artefacts[f"repr of {name}"] = repr(thing).encode()
            for library in ("pickle", "cloudpickle"):
                dumped = importlib.import_module(library).dumps(thing)
                self.artefacts[f"{library} of {name}"] = dumped
        self.artefacts["guarantee"] = (str(guarantee) + repr(guarantee.to_dict())).encode()
        self.artefacts["attributes"] = repr(self.study.user_attrs).encode()
        self.artefacts["modeler's log"] = log.getvalue().encode()

    def close(self) -> None:
        (self.shared / "stop").touch()
        self.curator.wait(60)
        self.storage.remove_session()
        self.storage.engine.dispose()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["private", "plain"])
def test_two_processes_leave_no_row(
    how: str, tmp_path: Path, debug_log: io.StringIO, capfd: pytest.CaptureFixture[str]
) -> None:
    sides = Sides(tmp_path, how)
    try:
        sampler = sides.run(4)
        sides.stop()
        sides.collect(sampler, debug_log)
    finally:
        sides.close()
    out, err = capfd.readouterr()
    sides.artefacts |= {"stdout": out.encode(), "stderr": err.encode()}

    states = [trial.state for trial in sides.study.trials]
    rows = [trial.params["row"] for trial in sides.study.trials]
    values = [trial.value for trial in sides.study.trials if trial.value is not None]
    failed = (
        TrialState.COMPLETE if how == "private" else TrialState.FAIL
    )  # or as the worst outcome
    assert states[0] == failed
    assert {s.name for s, row in zip(states, rows, strict=True) if row % FAILS} == {"COMPLETE"}
    guarantee = sampler.guarantee(sides.study)
    assert guarantee.protected
    assert guarantee.n_answers == len(values)
    assert (guarantee.outcomes is not None) == (how == "private")
    log = sides.artefacts["curator's stderr"].decode()
    assert "UPDATE" in log  # the log of statements was on
    assert "UPDATE" in debug_log.getvalue()
    assert b"Curator(n=40" in sides.artefacts["curator's stdout"]

    public = [abs(v) for v in values] + np.abs(sampler._config.Z).ravel().tolist()
    sides.secrets.rows.allow(public)
    sides.secrets.outcomes.allow([] if how == "plain" else public)
    assert sides.secrets.rows.scan(sides.artefacts) == []
    told = sides.secrets.outcomes.scan(sides.artefacts)
    assert bool(told) == (how == "plain")  # which answers as it is asked to


@pytest.mark.slow
def test_control_a_careless_curator_is_found_out(tmp_path: Path, debug_log: io.StringIO) -> None:
    sides = Sides(tmp_path, "careless")
    try:
        sampler = sides.run(2)
        sides.stop()
        sides.collect(sampler, debug_log)
    finally:
        sides.close()
    found = {hit.split(":")[0] for hit in sides.secrets.rows.scan(sides.artefacts)}
    assert found >= {
        "study.db", "vault.db", "more.npz", "curator's stdout", "curator's stderr",
        "pickle of trials", "cloudpickle of trials", "repr of trials",
    }  # fmt: skip


def _local(secret: Secrets, **settings: Any) -> Curator:
    def outcome(row: int) -> float:
        raise ValueError(f"{secret.token} {secret.X[row].tolist()}")

    known: dict[str, Any] = {"bounds": [(0, 1)] * D, "outcomes": outcome}
    return Curator(secret.X, epsilon=4.0, delta=1e-6, **(known | settings))


def test_a_failing_outcome_leaves_nothing_in_one_process(
    debug_log: io.StringIO, capfd: pytest.CaptureFixture[str]
) -> None:
    secret = Secrets()
    curator = _local(secret)
    sampler = POGPUCBSampler(curator.release(), seed=0)
    study = optuna.create_study(sampler=sampler, direction="maximize")
    for _ in range(3):
        study.ask().suggest_int("row", 0, N - 1)
    assert answer_trials(study, curator) == 3
    assert {trial.state for trial in study.trials} == {TrialState.FAIL}
    out, err = capfd.readouterr()
    artefacts = {
        "trials": repr([vars(trial) for trial in study.trials]).encode(),
        "pickle of study": pickle.dumps(study),
        "pickle of sampler": pickle.dumps(sampler),
        "log": debug_log.getvalue().encode(),
        "console": (out + err).encode(),
    }
    assert secret.rows.scan(artefacts) == []


def test_an_objective_that_asks_the_curator_itself_raises_nothing_of_a_row(
    debug_log: io.StringIO,
) -> None:
    secret = Secrets()
    curator = _local(secret)
    study = optuna.create_study(sampler=POGPUCBSampler(curator.release(), seed=0))
    caught: list[BaseException] = []
    try:
        study.optimize(lambda t: curator.evaluate(t.suggest_int("row", 0, N - 1)), n_trials=1)
    except Exception as error:
        caught.append(error)
    (error,) = caught
    assert error.__cause__ is None
    assert error.__context__ is None
    assert secret.rows.hits(f"{error} {error!r}".encode()) == []
    assert "Trial 0 failed" in debug_log.getvalue()
    assert secret.rows.hits(debug_log.getvalue().encode()) == []


def test_what_the_curator_refuses_quotes_no_row() -> None:
    secret = Secrets()
    curator = _local(secret, outcomes=None)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.ask().suggest_int("row", 1, N)
    other = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    other.ask().suggest_int("row", 0, N - 1)
    for asking in (study, other):
        with pytest.raises(ValueError, match=r"row|no outcomes=") as raised:
            answer_trials(asking, curator)
        shown = f"{raised.value} {raised.value!r}".encode()
        assert secret.rows.hits(shown) == []


def test_control_the_exceptions_of_an_open_outcome_are_found_out() -> None:
    secret = Secrets()

    def outcome(trial: Any) -> float:
        row = trial.suggest_int("row", 0, N - 1)
        raise ValueError(secret.X[row].tolist())

    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    with pytest.raises(ValueError, match=r"0\.") as raised:
        study.optimize(outcome, n_trials=1)
    assert exception_leaks(raised.value, secret.rows)


def test_samplers_pickle_public_numbers_only() -> None:
    secret = Secrets()
    table = _local(secret).release()
    sampler = POGPUCBSampler(table, seed=0)
    assert table.Z.tobytes() in pickle.dumps(sampler)
    assert secret.rows.hits(pickle.dumps(sampler)) == []
    secret.rows.add_raw("a control", float(table.Z[3, 1]))
    assert secret.rows.hits(pickle.dumps(sampler))
