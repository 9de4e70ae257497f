"""What of Optuna works with each system: rows that run, and the table of docs/optuna-matrix.md.

A row sets up one thing that Optuna offers, runs it for a system to the end of its plan, and says
what came of it: "works", "costs: ..." or "refused: ...". What is documented stands beside it, and
a test fails where the two differ. ``python -m tests.contracts.optuna_matrix --write`` writes the
page.

"works" means more than that nothing raised, see :meth:`Cell.check`.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import shutil
import signal
import socket
import sqlite3
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import numpy as np
import optuna
import optuna.terminator
import pytest
from optuna.trial import TrialState

from privbo_plugins.errors import PrivacyError
from tests.contracts import pages
from tests.contracts.optuna_subjects import (
    N_RECORDS,
    SUBJECTS,
    TOKEN,
    Ground,
    completed,
    finish_there,
    go_on,
    hang_there,
    serve,
    storage_at,
)
from tests.leaks.evidence import Evidence
from tests.leaks.scanner import Scanner
from tests.optuna_samplers.runs import rows
from tests.threads import taking_turns
from tests.worker import child, ended

MODULE = "tests.contracts.optuna_matrix"
PAGE = pages.DOCS / "optuna-matrix.md"

WORKS = "works"

OURS = ("privbo_plugins.errors", "goes on alone")
"""What a warning of ours has in it."""


@dataclass(frozen=True)
class Given:
    """What a cell may use of its surroundings.

    Attributes:
        empty: A file with Optuna's tables.
        postgres: Gives the URL of an empty database.
    """

    empty: Path
    postgres: Callable


class Cell:
    """One row for one system.

    Args:
        kind: The system.
        folder: An empty one.
        given: What it may use.
    """

    def __init__(self, kind, folder, given):
        self.kind, self.folder, self.given = kind, folder, given
        self.evidence = Evidence(folder)
        self.ground = Ground(folder)
        self.subject = kind(self.ground)
        self.expected = []
        self.studies = []
        self.until = contextlib.ExitStack()

    # Running --------------------------------------------------------------------------------

    def study(self, sampler=None, **settings):
        """A new study, in memory unless told otherwise."""
        chosen = self.subject.sampler if sampler is None else sampler
        if "directions" not in settings:
            settings = {"direction": self.subject.direction} | settings
        study = optuna.create_study(sampler=chosen, study_name="s", **settings)
        self.studies.append(study)
        return study

    def file(self):
        """The URL of a new SQLite file for a study."""
        path = self.ground.shared / "study.db"
        shutil.copy(self.given.empty, path)
        return f"sqlite:///{path}"

    def run(self, act=None, *, study=None, **settings):
        """A study to its end: some trials with settings of ``optimize``, then one by one."""
        study = self.study() if study is None else study
        settings = {"n_trials": self.subject.n_trials} | settings
        study.optimize(self.subject.objective(act), **settings)
        go_on(study, self.subject, act)
        return study

    def again(self):
        """The same system, as another process would make it."""
        self.subject.close()
        self.subject = self.kind(self.ground)

    def expects(self, text):
        """A warning that must come."""
        self.expected.append(text)

    # What must hold -------------------------------------------------------------------------

    def check(self, study, *, done=True):
        """All that "works" means; returns that word.

        Stored values are those that the vault remembers as released (read beside the product),
        the guarantee holds, the ledger holds what was declared and nothing twice, and the plan
        is used up.
        """
        shown = completed(study)
        assert shown
        for trial in shown:
            assert trial.value in self.subject.released(study, trial)
        guarantee = self.subject.guarantee(study)
        assert guarantee.protected, guarantee.reasons
        of_others = [note for note in guarantee.notes if "did not write" in note]
        assert of_others == [] or {*study.user_attrs} & {"dataset", "n"}, of_others
        self.subject.check_charges(study, done=done)
        assert self.subject.done(study) or not done
        assert study.user_attrs["privbo:guarantee"] == guarantee.lasting
        return WORKS

    def refused(self, call, thing, fix):
        """A call ends with a message that names the thing and the fix."""
        with pytest.raises(Exception) as raised:  # noqa: PT011
            call()
        text = str(raised.value)
        assert thing in text
        assert fix in text
        assert TOKEN not in text

    def documented(self, name):
        """What the page says of a row, once it has been seen to be so."""
        return next(one for one in ROWS if one.name == name).outcome(self.subject.name)

    def nothing_leaked(self):
        """No secret is in what anybody may read, and no warning came that was not expected."""
        said = [line for line in self.evidence.text("warnings").splitlines() if _ours(line)]
        for text in self.expected:
            assert any(text in line for line in said), f"no warning: {text}"
        strange = [line for line in said if not any(text in line for text in self.expected)]
        assert not strange, strange
        self.evidence.add_files()
        for study in self.studies:
            with contextlib.suppress(KeyError):  # it was deleted
                self.evidence.add("attributes", str(id(study)), _shown(study))
        scanner, blobs = self._scanner(), self.evidence.blobs
        sinks = ["vault"] if self.subject.own_study else ["storage", "attributes", "log"]
        if self.kind is not SUBJECTS["DP-GIBO"] and self.kind is not SUBJECTS["PO-GP-UCB"]:
            vault = self.ground.private / "vault.db"
            self.evidence.add("vault", "vault", vault.read_bytes() if vault.exists() else b"")
            sinks = [*sinks, "vault"]
        sinks += [] if self.subject.own_study else ["console", "warnings"]
        found = [hit for sink in sinks for hit in scanner.scan(blobs[sink])]
        assert not found, found

    def _scanner(self):
        scanner = Scanner()
        scanner.add_text("token", TOKEN)
        for number, line in enumerate(self.ground.secrets()):
            if len(line) == N_RECORDS:
                scanner.add_raw(f"mean {number}", float(np.mean(line)))
            for i, value in enumerate(line):
                scanner.add_number(f"secret {number}[{i}]", value)
        scanner.allow(
            abs(value)
            for study in self.studies
            for trial in _trials(study)
            for value in [*(trial.values or []), *trial.params.values()]
            if isinstance(value, float)
        )
        return scanner


def _ours(line):
    usual = "The noise of a broadcast is", "raise it to plan for further users"
    return not any(map(line.__contains__, usual)) and any(mark in line for mark in OURS)


def _trials(study):
    try:
        return study.get_trials(deepcopy=False)
    except KeyError:
        return []


def _shown(study):
    trials = study.get_trials(deepcopy=False)
    return repr([vars(trial) for trial in trials]) + repr(study.user_attrs)


# Rows -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One thing that Optuna offers.

    Attributes:
        name: In the table.
        sentence: What is done.
        run: Does it and says what came of it.
        documented: What comes of it by system, where it is not "works"; "" for all others.
        slow: Whether it takes more than a second or two.
    """

    name: str
    sentence: str
    run: Callable
    documented: Mapping[str, str] = field(default_factory=dict)
    slow: bool = False

    def outcome(self, system):
        """What the page says."""
        return self.documented.get(system, self.documented.get("", WORKS))


ROWS = []


def row(name, *, slow=False, **documented):
    """Registers a row; its docstring describes it."""

    def register(run):
        sentence = " ".join(str(run.__doc__).split())
        known = {_SYSTEMS[short]: text for short, text in documented.items()}
        ROWS.append(Row(name, sentence, run, known, slow))
        return run

    return register


_SYSTEMS = {
    "records": "DP-GIBO", "rewards": "LDP GP-UCB", "tpe": "ldp_objective, TPE",
    "draws": "DUETS", "table": "PO-GP-UCB", "agent": "DP-FTS-DE", "rest": "",
}  # fmt: skip


def outcome(one, system, folder, given):
    """Runs a row for a system and says what came of it."""
    cell = Cell(SUBJECTS[system], folder, given)
    try:
        with cell.evidence.recorded():
            said = one.run(cell)
            gc.collect()  # what is left open warns here
        cell.nothing_leaked()
    finally:
        cell.until.close()
        cell.subject.close()
    return said


# Loops ------------------------------------------------------------------------------------------


@row("`optimize`")
def optimize(cell):
    """`study.optimize` to the end of the plan; DP-GIBO stops the study by itself."""
    endless = cell.kind is SUBJECTS["DP-GIBO"]
    return cell.check(cell.run(n_trials=None if endless else cell.subject.n_trials))


@row("`n_jobs=4`")
def n_jobs(cell):
    """Four threads share a study and its sampler, and change at its lines, which is rare."""
    with taking_turns("optuna_samplers"):
        return cell.check(cell.run(n_jobs=4))


@row("`timeout`")
def timeout(cell):
    """A study that its `timeout` has stopped goes on where it was."""
    study = cell.study()
    slowly = cell.subject.objective(lambda trial: time.sleep(0.03))
    study.optimize(slowly, timeout=0.05)
    assert 0 < len(study.trials) < cell.subject.n_trials
    return cell.check(cell.run(study=study))


def _fails_once(cell):
    """A failure that quotes a record where the system hides what failures say."""
    text = TOKEN if cell.subject.guarded else "no file"

    def act(trial):
        if trial.number == 2:
            raise ValueError(text)

    return act


def _catch(caught):
    def run(cell):
        study = cell.run(_fails_once(cell), catch=caught)
        assert study.trials[2].state == TrialState.FAIL
        return cell.check(study)

    return run


for _name, _caught in {
    "Exception": Exception,
    "(Exception,)": (Exception,),
    "(ValueError,)": (ValueError,),
}.items():
    _run = _catch(_caught)
    _run.__doc__ = "A trial that raises `ValueError` fails, and the study goes on."
    row(f"`catch={_name}`")(_run)


@row("`TrialPruned`")
def trial_pruned(cell):
    """An objective raises `optuna.TrialPruned` by itself."""

    def act(trial):
        if trial.number == 2:
            raise optuna.TrialPruned(TOKEN if cell.subject.guarded else "")

    study = cell.run(act)
    assert study.trials[2].state == TrialState.PRUNED
    return cell.check(study)


@row("Ctrl-C")
def interrupted(cell):
    """`KeyboardInterrupt` in a trial ends the loop, and a second `optimize` goes on."""

    def act(trial):
        if trial.number == 2:
            raise KeyboardInterrupt

    study = cell.study()
    with pytest.raises(KeyboardInterrupt):
        study.optimize(cell.subject.objective(act), n_trials=cell.subject.n_trials)
    assert len(study.trials) == 3
    return cell.check(cell.run(study=study))


@row("`MaxTrialsCallback`")
def max_trials(cell):
    """`MaxTrialsCallback(3)` stops the study, and a second `optimize` goes on."""
    study = cell.study()
    enough = optuna.study.MaxTrialsCallback(3, states=(TrialState.COMPLETE,))
    study.optimize(cell.subject.objective(), n_trials=50, callbacks=[enough])
    assert len(study.trials) == 3
    cell.check(study, done=False)
    return cell.check(cell.run(study=study))


@row("`study.stop` in a callback")
def stopped(cell):
    """A callback stops the study after two trials, and a second `optimize` goes on."""
    study = cell.study()

    def stop(study, trial):
        if trial.number == 1:
            study.stop()

    study.optimize(cell.subject.objective(), n_trials=50, callbacks=[stop])
    assert len(study.trials) == 2
    return cell.check(cell.run(study=study))


@row("a callback that raises")
def callback_raises(cell):
    """The trial before it counts, its error arrives, and a second `optimize` goes on."""

    def fail(study, trial):
        raise RuntimeError("the disk is full")

    study = cell.study()
    with pytest.raises(RuntimeError, match="disk is full"):
        study.optimize(cell.subject.objective(), n_trials=5, callbacks=[fail])
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE]
    return cell.check(cell.run(study=study))


@row("`TerminatorCallback`")
def terminator(cell):
    """`optuna.terminator` stops the study by its released values, and a second loop goes on."""
    ends = optuna.terminator.Terminator(
        improvement_evaluator=optuna.terminator.BestValueStagnationEvaluator(1),
        error_evaluator=optuna.terminator.StaticErrorEvaluator(1.0),
        min_n_trials=2,
    )
    study = cell.study()
    callback = optuna.terminator.TerminatorCallback(ends)
    study.optimize(cell.subject.objective(), n_trials=50, callbacks=[callback])
    assert 2 <= len(study.trials)
    return cell.check(cell.run(study=study))


# Pruners ----------------------------------------------------------------------------------------


def _reports(cell, steps=4):
    """Public intermediate values, worse in every second trial."""

    def act(trial):
        for step in range(steps):
            value = trial.number % 2 + 1 / (step + 1)
            sign = 1 if cell.subject.direction == "minimize" else -1
            trial.report(sign * value, step, **cell.subject.public)
            if trial.should_prune(**cell.subject.public):
                raise optuna.TrialPruned

    return act


PRUNERS = {
    "NopPruner": lambda _: optuna.pruners.NopPruner(),
    "MedianPruner": lambda _: optuna.pruners.MedianPruner(n_startup_trials=1),
    "PercentilePruner": lambda _: optuna.pruners.PercentilePruner(25.0, n_startup_trials=1),
    "SuccessiveHalvingPruner": lambda _: optuna.pruners.SuccessiveHalvingPruner(),
    "HyperbandPruner": lambda _: optuna.pruners.HyperbandPruner(max_resource=4),
    "ThresholdPruner": lambda least: optuna.pruners.ThresholdPruner(
        **({"upper": 1.1} if least else {"lower": -1.1})
    ),
    "PatientPruner": lambda _: optuna.pruners.PatientPruner(
        optuna.pruners.MedianPruner(n_startup_trials=1), patience=0
    ),
    "WilcoxonPruner": lambda _: optuna.pruners.WilcoxonPruner(p_threshold=0.2),
}


def _pruner(make, spares_all):
    def run(cell):
        pruner = make(cell.subject.direction == "minimize")
        study = cell.run(_reports(cell), study=cell.study(pruner=pruner))
        pruned = [trial for trial in study.trials if trial.state == TrialState.PRUNED]
        assert bool(pruned) != spares_all
        return cell.check(study)

    return run


for _name, _make in PRUNERS.items():
    _run = _pruner(_make, spares_all=_name in ("NopPruner", "PatientPruner"))
    _run.__doc__ = (
        "Trials report public values, some of them bad, and the plan is used up all the same."
    )
    row(f"`{_name}`")(_run)


@row(
    "a pruner that spares nobody",
    records="costs: the study is stopped after 50 trials in a row, with a warning that says why",
)
def spares_nobody(cell):
    """From the fourth trial on every trial is pruned, and `n_trials` is 60."""

    def act(trial):
        trial.report(1.0, 0, **cell.subject.public)
        if trial.number > 2 and trial.should_prune(**cell.subject.public):
            raise optuna.TrialPruned

    least = cell.subject.direction == "minimize"
    strict = optuna.pruners.ThresholdPruner(**({"upper": 0.5} if least else {"lower": 1.5}))
    study = cell.study(pruner=strict)
    stops = cell.kind is SUBJECTS["DP-GIBO"]
    if stops:
        cell.expects("nothing was released of 50 trials one after another, so the study is")
    study.optimize(cell.subject.objective(act), n_trials=60)
    assert len(study.trials) == (53 if stops else 60)
    assert len(completed(study)) == 3
    cell.check(study, done=cell.subject.done(study))
    return cell.documented("a pruner that spares nobody")


# Which trials -----------------------------------------------------------------------------------


def _point(cell, value=0.25):
    return {"row": 3} if "row" in cell.subject.space else {"x": value}


@row("`enqueue_trial`")
def enqueue_trial(cell):
    """An enqueued point is evaluated like any other, first and between others."""
    study = cell.study()
    study.enqueue_trial(_point(cell))
    study.optimize(cell.subject.objective(), n_trials=2)
    study.enqueue_trial(_point(cell))
    cell.run(study=study)
    assert study.trials[0].params == study.trials[2].params == _point(cell)
    return cell.check(study)


_WARNED = "costs: NOT PROTECTED from the next trial on, with a warning"
_SHOWN = "costs: NOT PROTECTED from the next trial on, said in `privbo:guarantee` alone"


@row("`add_trial`", rest=_SHOWN, records=_WARNED, table=WORKS, agent=WORKS)
def add_trial(cell):
    """A trial with a value from elsewhere is added to a study of two trials.

    For PO-GP-UCB it counts as an answer; a federation's agent may add to its own study.
    """
    study = cell.study()
    study.optimize(cell.subject.objective(), n_trials=2)
    foreign = optuna.create_trial(
        value=0.5, params=_point(cell), distributions=dict(cell.subject.space)
    )
    study.add_trial(foreign)
    return _after_a_foreign_value(cell, study)


def _after_a_foreign_value(cell, study):
    warned = cell.kind is SUBJECTS["DP-GIBO"]
    if warned:
        cell.expects("Nothing is protected: the study holds values that were not released")
    go_on(study, cell.subject)
    assert cell.subject.done(study)
    said = study.user_attrs.get("privbo:guarantee", "")  # before anybody asks
    guarantee = cell.subject.guarantee(study)
    assert said.startswith("NOT PROTECTED") != guarantee.protected
    if guarantee.protected:
        return WORKS
    assert "values that were not" in " ".join(guarantee.reasons)
    return _WARNED if warned else _SHOWN


@row("ask and tell")
def ask_and_tell(cell):
    """`study.ask`, an evaluation, `study.tell`; DP-GIBO tells by `sampler.tell_private`."""
    study = cell.study()
    while not cell.subject.done(study):
        _told(cell, study, study.ask())
    return cell.check(study)


def _told(cell, study, trial):
    if hasattr(cell.subject.sampler, "tell_private"):
        point = cell.subject.suggest(trial)
        cell.subject.sampler.tell_private(trial, cell.subject.outcome(point))
    else:
        study.tell(trial, cell.subject.objective()(trial))


@row("`ask(fixed_distributions)`")
def define_and_run(cell):
    """The space is given to `study.ask`, before the objective sees the trial."""
    study = cell.study()
    while not cell.subject.done(study):
        trial = study.ask(fixed_distributions=dict(cell.subject.space))
        assert set(trial.params) == set(cell.subject.space)
        _told(cell, study, trial)
    return cell.check(study)


@row("nested `optimize`")
def nested(cell):
    """An objective runs another study inside, with Optuna's own sampler."""

    def act(trial):
        inner = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=trial.number))
        inner.optimize(lambda t: t.suggest_float("u", 0.0, 1.0), n_trials=1)

    return cell.check(cell.run(act))


@row("`PartialFixedSampler`")
def partial_fixed(cell):
    """One of two parameters is fixed by `PartialFixedSampler` around the sampler."""

    def act(trial):
        trial.suggest_float("y", 0.0, 1.0)

    wrapped = optuna.samplers.PartialFixedSampler({"y": 0.25}, cell.subject.sampler)
    study = cell.run(act, study=cell.study(wrapped))
    assert {trial.params["y"] for trial in study.trials} == {0.25}
    return cell.check(study)


# Storages ---------------------------------------------------------------------------------------


def _restored(cell, kind, where):
    """Some trials here, the rest in a second process, and what is left as a third one sees it."""
    study = cell.study(storage=storage_at(kind, where))
    study.optimize(cell.subject.objective(), n_trials=3)
    begun = {trial.number: trial.value for trial in study.trials}
    cell.subject.close()
    there = child(finish_there, cell.subject.name, str(cell.folder), kind, where)
    assert ended(there) == 0
    cell.again()
    study = optuna.load_study(
        study_name="s", storage=storage_at(kind, where), sampler=cell.subject.sampler
    )
    cell.studies.append(study)
    assert {n: study.trials[n].value for n in begun} == begun
    assert len(study.trials) > len(begun)
    return cell.check(study)


@row("`InMemoryStorage`")
def in_memory(cell):
    """A study in memory; it ends with its process, and nothing can be restored."""
    return cell.check(cell.run(study=cell.study(storage=optuna.storages.InMemoryStorage())))


@row("`RDBStorage`, SQLite", slow=True)
def sqlite(cell):
    """A second process goes on with the study and its vault."""
    return _restored(cell, "rdb", cell.file())


@row("`RDBStorage`, PostgreSQL", slow=True)
def postgresql(cell):
    """A second process goes on with the study and its vault."""
    return _restored(cell, "rdb", cell.given.postgres())


@row("`JournalStorage`, file", slow=True)
def journal(cell):
    """A second process goes on with the study and its vault."""
    return _restored(cell, "journal", str(cell.ground.shared / "study.log"))


@row("gRPC proxy", slow=True)
def grpc_proxy(cell):
    """The study lies behind `run_grpc_proxy_server`; a second process goes on with it."""
    pytest.importorskip("grpc", reason="grpcio is not installed (the dev extra)")
    port = _proxy(cell, cell.file())
    return _restored(cell, "grpc", str(port))


def _proxy(cell, url):
    """The port of a proxy in front of a database, which lives until the cell is left."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    server = child(serve, url, port)
    cell.until.callback(server.join)
    cell.until.callback(server.kill)
    storage_at("grpc", str(port)).wait_server_ready(timeout=60)
    return port


def proxied(cell, url):
    """The storage behind such a proxy."""
    return storage_at("grpc", str(_proxy(cell, url)))


@row("heartbeat", slow=True)
def heartbeat(cell):
    """A worker is killed in mid-trial, its heartbeat stops, and its trial is run again.

    By `RetryHeartbeatStaleTrialCallback` (`RetryFailedTrialCallback` before Optuna 4.9); nothing
    is charged twice.
    """
    url = cell.file()
    study = cell.study(storage=storage_at("heartbeat", url))
    study.optimize(cell.subject.objective(), n_trials=3)
    cell.subject.close()
    worker = child(hang_there, cell.subject.name, str(cell.folder), url)
    _wait_for(lambda: (cell.ground.private / "hangs").exists())
    file = cell.ground.shared / "study.db"
    _a_day_passes(file)
    recent = "SELECT 1 FROM trial_heartbeats WHERE heartbeat > datetime('now', '-1 hour')"
    _wait_for(lambda: rows(file, recent))
    optuna.storages.fail_stale_trials(study)
    assert study.trials[3].state == TrialState.RUNNING  # its heart beats
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    _a_day_passes(file)
    cell.again()
    study = optuna.load_study(study_name="s", storage=study._storage, sampler=cell.subject.sampler)
    go_on(study, cell.subject)
    assert study.trials[3].state == TrialState.FAIL
    retries = [t for t in study.trials if t.system_attrs.get("failed_trial") == 3]
    assert [trial.state for trial in retries] == [TrialState.COMPLETE]
    return cell.check(study)


def _a_day_passes(file):
    """Puts the last sign of life of all trials back; their hearts beat once a second."""
    with contextlib.closing(sqlite3.connect(file)) as database, database:
        database.execute("UPDATE trial_heartbeats SET heartbeat = datetime('now', '-1 day')")


def _wait_for(there, patience=60.0):
    end = time.monotonic() + patience
    while not there():
        assert time.monotonic() < end
        time.sleep(0.05)


# What else is done to a study ------------------------------------------------------------------


@row("`copy_study`")
def copy_study(cell):
    """A study is copied to another storage after three trials, and the copy comes to its end.

    In DP-GIBO both are one run: a trial of the same number shows the same release in both, or is
    refused at another point.
    """
    first, study = cell.subject, cell.study()
    study.optimize(cell.subject.objective(), n_trials=3)
    to = optuna.storages.InMemoryStorage()
    optuna.copy_study(from_study_name="s", from_storage=study._storage, to_storage=to)
    cell.again()
    copy = optuna.load_study(study_name="s", storage=to, sampler=cell.subject.sampler)
    cell.studies.append(copy)
    assert [trial.value for trial in copy.trials] == [trial.value for trial in study.trials]
    cell.run(study=copy)
    if cell.kind is SUBJECTS["DP-GIBO"]:
        study.optimize(first.objective(), n_trials=1)
        assert study.trials[3].params == copy.trials[3].params
        assert study.trials[3].value == copy.trials[3].value
    return cell.check(copy)


@row(
    "`delete_study`",
    records="refused: the vault remembers the study of this name; another name or vault is needed",
)
def delete_study(cell):
    """A study is deleted, and one of the same name begins in the same storage."""
    study = cell.study()
    study.optimize(cell.subject.objective(), n_trials=3)
    charged = len(cell.subject.charges())
    optuna.delete_study(study_name="s", storage=study._storage)
    cell.again()
    again = cell.study(storage=study._storage)
    if cell.kind is SUBJECTS["DP-GIBO"]:
        begin = lambda: again.optimize(cell.subject.objective(), n_trials=1)  # noqa: E731
        cell.refused(begin, "already holds a run of another study of this name", "another vault")
        assert len(cell.subject.charges()) == charged
        return cell.documented("`delete_study`")
    cell.check(cell.run(study=again))
    assert len(cell.subject.charges()) >= charged  # what the deleted study cost is not forgotten
    return WORKS


@row("multi-objective", rest="refused: one objective, `direction=`")
def multi_objective(cell):
    """A study with two directions."""
    study = cell.study(directions=["minimize", "maximize"])
    run = lambda: study.optimize(cell.subject.objective(), n_trials=1)  # noqa: E731
    cell.refused(run, "tunes one objective", "direction=")
    assert not completed(study)
    return cell.documented("multi-objective")


@row(
    "constraints",
    rest="refused: `trial.set_constraint` needs `public=True`; then stored, and not learnt from",
    table="costs: stored, and not learnt from",
    agent="costs: stored, and not learnt from",
)
def constraints(cell):
    """An objective calls `trial.set_constraint`."""
    if cell.subject.guarded:
        study = cell.study()
        plainly = cell.subject.objective(lambda trial: trial.set_constraint("c", 1.0))
        run = lambda: study.optimize(plainly, n_trials=1)  # noqa: E731
        cell.refused(run, "trial.set_constraint", "public=True")
        assert not study.trials[0].constraints
    public = cell.subject.public
    study = cell.run(lambda trial: trial.set_constraint("c", 1.0, **public), study=_second(cell))
    assert {tuple(trial.constraints.items()) for trial in study.trials} == {(("c", 1.0),)}
    cell.check(study)
    return cell.documented("constraints")


def _second(cell):
    """Another study of the same system."""
    study = optuna.create_study(sampler=cell.subject.sampler, direction=cell.subject.direction)
    cell.studies.append(study)
    return study


@row("`trials_dataframe`")
def trials_dataframe(cell):
    """A table of all trials holds what the study holds."""
    pytest.importorskip("pandas", reason="pandas is not installed")
    study = cell.run()
    frame = study.trials_dataframe()
    assert frame["value"].tolist() == [trial.value for trial in study.trials]
    cell.evidence.add("attributes", "frame", frame.to_csv())
    return cell.check(study)


PLOTS = (
    "contour", "edf", "intermediate_values", "optimization_history", "parallel_coordinate",
    "param_importances", "rank", "slice", "timeline",
)  # fmt: skip


@row("`optuna.visualization`")
def visualization(cell):
    """Every picture of one objective (not the terminator's, which needs torch)."""
    pytest.importorskip("plotly", reason="plotly is not installed (the viz extra)")
    study = cell.run(_reports(cell), study=cell.study(pruner=optuna.pruners.MedianPruner()))
    for name in PLOTS:
        figure = getattr(optuna.visualization, f"plot_{name}")(study)
        cell.evidence.add("attributes", name, figure.to_json())
    return cell.check(study)


@row("`optuna.importance`")
def importance(cell):
    """`get_param_importances` by fANOVA and by mean decrease of impurity, from released values."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed (the sklearn extra)")
    study = cell.run()
    for evaluator in (
        optuna.importance.FanovaImportanceEvaluator(seed=0),
        optuna.importance.MeanDecreaseImpurityImportanceEvaluator(seed=0),
    ):
        try:
            shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
        except RuntimeError as error:  # few rewards may all be released alike, or of one point
            if "zero total variance" not in str(error):
                raise
            continue
        assert shares.keys() == study.best_params.keys()
        assert sum(shares.values()) == pytest.approx(1)
        cell.evidence.add("attributes", type(evaluator).__name__, repr(shares))
    return cell.check(study)


@row(
    "artifacts of a trial",
    rest="refused: a private objective uploads nothing; upload to the study what is public",
    table=WORKS,
    agent=WORKS,
)
def artifacts_of_a_trial(cell):
    """An objective calls `upload_artifact` for its trial."""
    store, file = _artifact(cell)

    def act(trial):
        optuna.artifacts.upload_artifact(
            artifact_store=store, file_path=file, study_or_trial=trial
        )

    study = cell.study()
    if not cell.subject.guarded:
        cell.run(act, study=study)
        metas = optuna.artifacts.get_all_artifact_meta(study.trials[0], storage=study._storage)
        assert [meta.filename for meta in metas] == ["curve.txt"]
        return cell.check(study)
    run = lambda: study.optimize(cell.subject.objective(act), n_trials=1)  # noqa: E731
    cell.refused(run, "artifact", "study_or_trial=study")
    assert [path.name for path in Path(file).parent.glob("store/*")] == []
    return cell.documented("artifacts of a trial")


def _artifact(cell):
    """A store, and a file with nothing private."""
    folder = cell.ground.shared.parent / "files"
    (folder / "store").mkdir(parents=True)
    (folder / "curve.txt").write_text("1 2 3")
    store = optuna.artifacts.FileSystemArtifactStore(str(folder / "store"))
    return store, str(folder / "curve.txt")


@row("artifacts of a study")
def artifacts_of_a_study(cell):
    """`upload_artifact` for the whole study, and its download; a guarantee notes such files."""
    store, file = _artifact(cell)
    study = cell.run()
    known = optuna.artifacts.upload_artifact(
        artifact_store=store, file_path=file, study_or_trial=study
    )
    back = str(cell.folder / "back.txt")
    optuna.artifacts.download_artifact(artifact_store=store, file_path=back, artifact_id=known)
    assert Path(back).read_text() == "1 2 3"
    notes = " ".join(cell.subject.guarantee(study).notes)
    assert ("files were uploaded to the study" in notes) != cell.subject.own_study
    return cell.check(study)


# Other ways in ----------------------------------------------------------------------------------


def _command(*words):
    """(exit code of a command of Optuna, what it prints)."""
    from optuna.cli import main

    with mock.patch.object(sys, "argv", ["optuna", *words]):
        with contextlib.redirect_stdout(io.StringIO()) as said:
            code = main()
    return code, said.getvalue()


@row(
    "`optuna ask` on the command line",
    slow=True,
    rest="not available: Optuna finds samplers in `optuna.samplers` alone; ask in Python",
    tpe=WORKS,
)
def ask_on_the_command_line(cell):
    """`optuna ask --sampler NAME --sampler-kwargs JSON`, `private(trial)`, `optuna tell`."""
    url = cell.file()
    study = cell.study(storage=url)
    name = type(cell.subject.sampler).__name__
    space = {
        n: optuna.distributions.distribution_to_json(d) for n, d in cell.subject.space.items()
    }
    space_json = "{" + ", ".join(f'"{n}": {text}' for n, text in space.items()) + "}"
    ask = ["ask", "--storage", url, "--study-name", "s", "--sampler", name]
    ask += ["--sampler-kwargs", '{"seed": 0}', "--search-space", space_json]
    if not hasattr(optuna.samplers, name):
        code, said = _command(*ask)  # "is not an optuna command", of an AttributeError
        assert code == 1
        assert "usage: optuna" in said
        assert not study.trials
        return cell.documented("`optuna ask` on the command line")
    for number in range(2):
        code, said = _command(*ask)
        assert code == 0
        assert f'"number": {number}' in said
        _evaluated_and_told(cell, study, url, number)
    return cell.check(cell.run(study=study))


@row("`optuna tell` on the command line", slow=True)
def tell_on_the_command_line(cell):
    """A trial asked for in Python, its released value told by `optuna tell`."""
    url = cell.file()
    study = cell.study(storage=url)
    for _ in range(2):
        _evaluated_and_told(cell, study, url, study.ask().number)
    assert len(completed(study)) == 2
    return cell.check(cell.run(study=study))


def _evaluated_and_told(cell, study, url, number):
    trial = optuna.Trial(study, study.trials[number]._trial_id)
    released = cell.subject.objective()(trial)
    told = ["--trial-number", str(number), "--values", repr(released)]
    code, _ = _command("tell", "--storage", url, "--study-name", "s", *told)
    assert code == 0
    assert study.trials[number].value == released


@row(
    "`OptunaSearchCV`",
    rest="refused: its objective is its own mean score; wrap one of your own",
    tpe="not available: it takes no objective, so nothing can be wrapped",
    agent="works, the study being the agent's own",
)
def search_cv(cell):
    """`optuna_integration.OptunaSearchCV(study=...)` with our sampler, in one thread and two."""
    pytest.importorskip("optuna_integration", reason="optuna-integration is not installed")
    pytest.importorskip("sklearn", reason="scikit-learn is not installed (the sklearn extra)")
    if not hasattr(cell.subject.sampler, "guarantee"):
        return _takes_no_objective(cell)
    for n_jobs in (1, 2):
        study = optuna.create_study(direction="maximize", sampler=cell.subject.sampler)
        cell.studies.append(study)
        if cell.subject.own_study:
            _fitted(study, n_jobs, cell.subject.n_trials)
            assert cell.subject.guarantee(study).protected
            continue
        fit = lambda study=study, n_jobs=n_jobs: _fitted(study, n_jobs, 3)  # noqa: E731
        if cell.kind is SUBJECTS["DP-GIBO"] and n_jobs > 1:  # a trial has failed in its thread
            cell.expects("trials ran outside sampler.private")
        if n_jobs > 1:  # Optuna may end its loop before it asks the thread that was refused
            with contextlib.suppress(PrivacyError):
                fit()
            assert any(trial.state == TrialState.FAIL for trial in study.trials)
        else:
            cell.refused(fit, "OptunaSearchCV", "study.optimize(")
        assert not completed(study)
    return cell.documented("`OptunaSearchCV`")


def _takes_no_objective(cell):
    import inspect

    from optuna_integration import OptunaSearchCV

    assert "objective" not in inspect.signature(OptunaSearchCV).parameters
    return cell.documented("`OptunaSearchCV`")


def _fitted(study, n_jobs, n_trials):
    from optuna_integration import OptunaSearchCV
    from sklearn.linear_model import Ridge

    X = np.arange(24.0).reshape(12, 2)
    space = {"alpha": optuna.distributions.FloatDistribution(0.0, 1.0)}
    search = OptunaSearchCV(Ridge(), space, study=study, cv=2, n_jobs=n_jobs, n_trials=n_trials)
    search.fit(X, X[:, 0])


# The table --------------------------------------------------------------------------------------


def table():
    """What works with every system, and every other documented outcome, as Markdown."""
    rows = [(one.name, one.sentence, {s: one.outcome(s) for s in SUBJECTS}) for one in ROWS]
    return f"Works with every system: {pages.exceptions(rows, [*SUBJECTS], WORKS)}"


if __name__ == "__main__":
    pages.main(MODULE, PAGE, table)
