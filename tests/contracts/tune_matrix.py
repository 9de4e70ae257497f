"""What of Ray Tune works with which search: ``python -m tests.contracts.tune_matrix`` prints it.

A row is something that Tune offers. Its function runs a small experiment on a real Ray for one
system, checks what has come out of it and says "works", "refused: ..." or "costs: ..."; the table
says what is expected. tests/raytune_searchers/test_tune_matrix.py runs every cell, and
``--write`` makes ``docs/ray-matrix.md`` of the table.
"""

from __future__ import annotations

import functools
import os
import struct
import tempfile
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from ray import tune
from ray.tune.schedulers import (
    AsyncHyperBandScheduler,
    FIFOScheduler,
    HyperBandForBOHB,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
)
from ray.tune.search import ConcurrencyLimiter, Repeater

from privbo_plugins.errors import UtilityWarning, VaultError
from tests.contracts import pages
from tests.contracts import tune_clusters as clusters
from tests.contracts.tune_systems import SYSTEMS, System
from tests.contracts.tune_trials import PUBLIC, Checkpoints, Dies, Fails, Sleeps, made, turns
from tests.leaks import Scanner

MODULE = "tests.contracts.tune_matrix"
PAGE = pages.DOCS / "ray-matrix.md"

WORKS = "works"

RECORDS, REWARDS, TABLE, AGENTS, DUETS = SYSTEMS

Run = Callable[[System, Path], str]


@dataclass(frozen=True)
class Row:
    """One thing that Tune offers.

    Attributes:
        part: Of the page.
        name: In the table.
        sentence: What is tried, in one sentence.
        run: Runs it for a system in an empty folder and says how it went.
        cells: What is expected, by system; all others work.
        ordinary: Systems for which the ordinary suite runs it; the others are left to soak.
        warns: Warnings of ours that belong to it.
    """

    part: str
    name: str
    sentence: str
    run: Run
    cells: Mapping[str, str]
    ordinary: frozenset[str]
    warns: tuple[type[Warning], ...] = ()

    def expected(self, system):
        """What the table says."""
        return self.cells.get(system, WORKS)


ROWS = []

NO_VALUE = "costs: no trial has a value, and fifty in a row end the search with a warning"
ANEW = "costs: a paused trial begins anew, unless it goes on from a checkpoint of its own"
BESIDE = "costs: `guarantee()` notes that more than answers was reported"
MORE = "costs: up to one trial more for each that is resumed, and no privacy"
UNSEEN = "costs: a round that was open counts as done, and no result shows it"
BY_PBT = "Search algorithms cannot be used with PopulationBasedTraining schedulers"
BY_REPEATER = "Repeater tells the search means of several releases"
BY_ROUND = "Repeater runs a trial several times and tells the search a mean"
BY_CLIENT = "connected by Ray Client"
LEARNS_NOTHING = (
    "costs: the search here learns nothing; `from_experiment(folder)` gives one that did"
)


def row(part, name, *, cells=None, ordinary=(), warns=()):
    """Registers a row; the first line of its docstring is its sentence."""

    def register(run):
        sentence = str(run.__doc__).splitlines()[0]
        ROWS.append(Row(part, name, sentence, run, cells or {}, frozenset(ordinary), warns))
        return run

    return register


def every(cell, *, but=None):
    """The same cell for all systems but some."""
    return dict.fromkeys(SYSTEMS, cell) | dict(but or {})


def run_through(system, folder, before=None, **settings):
    """A whole experiment, which must be sound."""
    with system.job(folder, before) as job:
        system.check(job, job.tuner(**settings).fit())
    return WORKS


def refusal(attempt, *named):
    """What is refused, in the words of the error, which must name the thing and the fix."""
    try:
        attempt()
    except Exception as error:
        text = " ".join(str(error).split())
        for words in named:
            assert words in text, f"{words!r} is not in {text!r}"
        return f"refused: {named[0]}"
    raise AssertionError("it was not refused")


# Schedulers -------------------------------------------------------------------------------------


@row("Schedulers", "FIFO")
def fifo(system, folder):
    """Trials run to their end, in the order in which they were suggested."""
    return run_through(system, folder, scheduler=FIFOScheduler())


def with_stopped(system, folder, scheduler):
    """An experiment in which a scheduler stops the second trial before it has a value."""
    stops = system.public == PUBLIC
    with system.job(folder, system.epochs(2, bad=1)) as job:
        results = job.tuner(scheduler=scheduler).fit()
        lost = int(stops and job.num_samples > 0)
        system.check(job, results, released=job.trials - lost)
        assert len(results) == job.trials + int(stops) - lost
        assert not results.errors
    return WORKS


@row("Schedulers", "ASHA")
def asha(system, folder):
    """`ASHAScheduler` on a public metric, with `max_t` above the number of a trial's reports."""
    scheduler = AsyncHyperBandScheduler(
        metric=system.public, mode="min", max_t=10, grace_period=1, reduction_factor=2
    )
    return with_stopped(system, folder, scheduler)


@row(
    "Schedulers",
    "ASHA with `max_t` equal to the reports",
    cells=dict.fromkeys((RECORDS, REWARDS, DUETS), NO_VALUE),
    warns=(UtilityWarning,),
)
def asha_at_the_end(system, folder):
    """ASHA ends each trial at its last public report, before its function returns."""
    shows = system.public == PUBLIC
    scheduler = AsyncHyperBandScheduler(
        metric=system.public, mode="min", max_t=2 if shows else 1, grace_period=1
    )
    with system.job(folder, system.epochs(2)) as job:
        wanted = {"num_samples": 3} if shows else {}
        results = job.tuner(scheduler=scheduler, **wanted).fit()
        system.check(job, results, released=0 if shows else None)
        assert not results.errors
    return NO_VALUE if shows else WORKS


@row("Schedulers", "MedianStoppingRule")
def median(system, folder):
    """Stops trials that are worse than the median of the others, by a public metric."""
    rule = MedianStoppingRule(
        time_attr="training_iteration", metric=system.public, mode="min", grace_period=0,
        min_samples_required=1,
    )  # fmt: skip
    return with_stopped(system, folder, rule)


def with_halves(system, folder, scheduler):
    """An experiment of which a scheduler pauses trials, and goes on with the better half."""
    with system.job(folder, system.epochs(3)) as job:
        results = job.tuner(scheduler=scheduler).fit()
        shown = len(system.values(results))
        assert shown == job.trials or (job.num_samples > 0 and shown >= 1)
        system.check(job, results, released=shown)
        assert not results.errors
    return ANEW if turns(folder) > len(results) else WORKS


@row("Schedulers", "HyperBand")
def hyperband(system, folder):
    """`HyperBandScheduler` on a public metric, with `max_t` above a trial's reports."""
    scheduler = HyperBandScheduler(metric=system.public, mode="min", max_t=4, reduction_factor=2)
    return with_halves(system, folder, scheduler)


@row("Schedulers", "HyperBandForBOHB", cells=dict.fromkeys((RECORDS, REWARDS, TABLE, DUETS), ANEW))
def bohb(system, folder):
    """BOHB's scheduler; its searcher `TuneBOHB` is another one, and `TuneConfig` takes one."""
    scheduler = HyperBandForBOHB(metric=system.public, mode="min", max_t=4, reduction_factor=2)
    return with_halves(system, folder, scheduler)


@row("Schedulers", "PopulationBasedTraining", cells=every(f"refused: {BY_PBT}"))
def pbt(system, folder):
    """Population based training mutates configurations itself and takes no search."""
    scheduler = PopulationBasedTraining(
        metric=system.public, mode="min", hyperparam_mutations={"x": [0.1, 0.9]}
    )
    with system.job(folder) as job:
        tuner = job.tuner(scheduler=scheduler)
        return refusal(tuner.fit, BY_PBT, "Please remove")


# How many, how long ------------------------------------------------------------------------------


@row("How many, how long", "`max_concurrent_trials`")
def at_once(system, folder):
    """Two trials at once."""
    return run_through(system, folder, max_concurrent_trials=2)


@row("How many, how long", "`ConcurrencyLimiter`")
def limiter(system, folder):
    """The search inside a `ConcurrencyLimiter`."""
    with system.job(folder) as job:
        limited = ConcurrencyLimiter(job.search, max_concurrent=2)
        system.check(job, job.tuner(search=limited).fit())
    return WORKS


@row(
    "How many, how long",
    "`Repeater`",
    cells={
        **dict.fromkeys((RECORDS, REWARDS, DUETS), f"refused: {BY_REPEATER}"),
        AGENTS: f"refused: {BY_ROUND}",
    },
)
def repeater(system, folder):
    """The search inside a `Repeater`, which tells it means of several trials."""
    with system.job(folder) as job:
        repeated = Repeater(job.search, repeat=2)
        results = job.tuner(search=repeated, num_samples=2).fit()
        if system.name == TABLE:  # a mean of one answer, which is told again
            told, guarantee = job.answers.guarantee(), job.search.guarantee(results)
            answer = job.answers(results[0].config["row"])
            assert list(system.values(results).values()) == [answer, answer]
            assert guarantee.protected, guarantee
            assert guarantee.n_answers == told.n_answers == 1
            return WORKS
        system.check(job, results, released=0)
        assert turns(folder) == 0, "something was evaluated"
        named = BY_ROUND if system.name == AGENTS else BY_REPEATER
        return refusal(lambda: raise_first(results), named, "Leave it out")


def raise_first(results):
    """Raises the first error of a ResultGrid."""
    raise results.errors[0]


@row("How many, how long", "`stop=` a dictionary")
def stop_dict(system, folder):
    """`RunConfig(stop={"training_iteration": 10})`, more than a trial reports."""
    run = {"stop": {"training_iteration": 10, "time_total_s": 600}}
    return run_through(system, folder, system.epochs(2), run=run)


@row("How many, how long", "`stop=` a function")
def stop_function(system, folder):
    """A function of trial and result that ends no trial before its value."""
    run = {"stop": lambda trial, result: result["training_iteration"] > 5}
    return run_through(system, folder, system.epochs(2), run=run)


@row("How many, how long", "`time_budget_s`")
def time_budget(system, folder):
    """The experiment ends after some seconds, wherever it is."""
    with system.job(folder, Sleeps(3.0)) as job:
        results = job.tuner(time_budget_s=7.0, max_concurrent_trials=1).fit()
        shown = len(system.values(results))
        assert shown < job.trials
        system.check(job, results, released=shown)
    return WORKS


# Failures ---------------------------------------------------------------------------------------


@row("Failures", "`FailureConfig(max_failures=1)`")
def max_failures(system, folder):
    """A trial that fails is run again, and released once."""
    run = {"failure_config": tune.FailureConfig(max_failures=1)}
    with system.job(folder, Fails()) as job:
        results = job.tuner(run=run).fit()
        system.check(job, results)
        assert len(results) == job.trials
        assert turns(folder) == job.trials + 1
    return WORKS


@row("Failures", "a killed process", ordinary=(RECORDS, REWARDS, TABLE, AGENTS))
def killed(system, folder):
    """The process of the second evaluation is killed; `max_failures` begins another one."""
    run = {"failure_config": tune.FailureConfig(max_failures=20)}
    vaults = {"vault": f"sqlite:///{folder}/secret/vault.db"}
    with system.job(folder, Dies(), **vaults) as job:
        results = job.tuner(run=run, max_concurrent_trials=1).fit()  # a process less to begin anew
        system.check(job, results)
        assert turns(folder) > job.trials
    return WORKS


@row("Failures", "`fail_fast`")
def fail_fast(system, folder):
    """The first failure ends the experiment."""
    run = {"failure_config": tune.FailureConfig(fail_fast=True)}
    with system.job(folder, Fails()) as job:
        results = job.tuner(run=run, max_concurrent_trials=1).fit()
        assert len(results.errors) == 1
        system.check(job, results, released=0)
        text = "".join(p.read_text() for p in job.results.rglob("error.txt"))
        assert "Jane Doe" not in text or system.name == TABLE
    return WORKS


# What trials get ------------------------------------------------------------------------------


@row("What trials get", "`reuse_actors=False`")
def new_actors(system, folder):
    """A process for every trial."""
    return run_through(system, folder, reuse_actors=False)


def with_more(system, folder, wrap):
    """An experiment whose trainable is wrapped once more."""
    with system.job(folder) as job:
        system.check(job, job.tuner(trainable=wrap(job.trainable)).fit())
    return WORKS


@row("What trials get", "`tune.with_resources`")
def resources(system, folder):
    """Two CPUs a trial."""
    return with_more(system, folder, lambda inner: tune.with_resources(inner, {"cpu": 2}))


@row("What trials get", "fractions of a GPU")
def gpus(system, folder):
    """Half a GPU a trial, by Ray's count of resources."""
    wrap = functools.partial(tune.with_resources, resources={"cpu": 1, "gpu": 0.5})
    return with_more(system, folder, wrap)


@row("What trials get", "`tune.with_parameters`")
def parameters(system, folder):
    """An object that Ray hands to every trial."""
    return with_more(system, folder, lambda inner: _given(inner))


def _given(inner):
    def trainable(config, parts):
        assert parts == {"a": 1}
        return inner(config)

    return tune.with_parameters(trainable, parts={"a": 1})


# Checkpoints ------------------------------------------------------------------------------------


@row(
    "Checkpoints and files",
    "checkpoints",
    cells={AGENTS: "not applicable: an agent's trial reports its tags only", TABLE: BESIDE},
)
def checkpoints(system, folder):
    """`report_public(..., checkpoint=)`; `checkpoint_score_attribute` keeps the best of three."""
    kept = tune.CheckpointConfig(
        num_to_keep=1, checkpoint_score_attribute=PUBLIC, checkpoint_score_order="min"
    )
    with system.job(folder, Checkpoints()) as job:
        results = job.tuner(run={"checkpoint_config": kept}).fit()
        system.check(job, results)
        for result in results:
            best = result.get_best_checkpoint(PUBLIC, "min")
            assert (Path(best.path) / "model").read_text() == "1"
            assert len(result.best_checkpoints) <= 2  # the best one, and the last
        notes = " ".join(job.search.guarantee(results).notes)
    if system.name == TABLE:
        assert "other names" in notes, notes
        return BESIDE
    assert "report_public(checkpoint)" in notes, notes
    return WORKS


@row("Checkpoints and files", "`tune.run`")
def tune_run(system, folder):
    """The older way to start an experiment."""
    with system.job(folder) as job:
        analysis = tune.run(
            job.trainable, config=dict(job.space), search_alg=job.search,
            num_samples=job.num_samples, storage_path=str(job.results), name="run", verbose=0,
            reuse_actors=True,
        )  # fmt: skip
        results = tune.ResultGrid(analysis)
        system.check(job, results)
        assert job.search.guarantee(analysis).protected
    return WORKS


# Loggers ----------------------------------------------------------------------------------------


def logged(system, folder, sink, *callbacks):
    """An experiment whose files are scanned: ``sink`` holds each release, no file a secret."""
    with system.job(folder) as job:
        results = job.tuner(run={"callbacks": list(callbacks)}).fit()
        system.check(job, results)
        values = system.values(results).values()
        public = [v for r in results for v in (*r.metrics.values(), *r.config.values())]
        scanner = scanner_of(folder, [v for v in public if isinstance(v, float)])
    assert len(scanner) > 0, "nothing is looked for"
    files = [path for path in job.results.rglob("*") if path.is_file()]
    found = [(path.name, hit) for path in files for hit in scanner.hits(path.read_bytes())]
    assert found == [], found
    written = b"".join(path.read_bytes() for path in files if sink in str(path))
    for value in values:
        forms = (repr(value).encode(), struct.pack("<f", value), f"{value:.6g}".encode())
        assert any(form in written for form in forms), (sink, value)
    return WORKS


def scanner_of(folder, public):
    """What finds each private number that trials have made."""
    scanner = Scanner()
    for i, numbers in enumerate(made(folder)):
        for j, number in enumerate(numbers):
            if number in (0.0, 1.0):  # an agent may well choose a bound of its space
                continue
            if number > 0.1:
                scanner.add_number(f"evaluation {i}, number {j}", number)
            scanner.add_raw(f"evaluation {i}, number {j}", number)
    scanner.allow(public)
    return scanner


@row("Loggers", "JSON")
def json_logger(system, folder):
    """`result.json` holds every release, and no file holds anything private."""
    return logged(system, folder, "result.json")


@row("Loggers", "CSV")
def csv_logger(system, folder):
    """`progress.csv` holds every release, and no file holds anything private."""
    return logged(system, folder, "progress.csv")


@row("Loggers", "TensorBoard")
def tensorboard(system, folder):
    """TensorBoard's files hold every release, and no file holds anything private."""
    return logged(system, folder, "tfevents")


@row("Loggers", "MLflow")
def mlflow(system, folder):
    """`MLflowLoggerCallback` with a local store: releases only."""
    from ray.air.integrations.mlflow import MLflowLoggerCallback

    store = folder / "results" / "mlruns"
    logger = MLflowLoggerCallback(tracking_uri=f"file://{store}", experiment_name="run")
    with mock.patch.dict(os.environ, {"MLFLOW_ALLOW_FILE_STORE": "true"}):
        return logged(system, folder, "mlruns", logger)


@row("Loggers", "Weights & Biases")
def wandb(system, folder):
    """`WandbLoggerCallback` in offline mode: releases only."""
    from ray.air.integrations.wandb import WandbLoggerCallback

    place = folder / "results" / "wandb-files"
    place.mkdir(parents=True)
    logger = WandbLoggerCallback(project="run", mode="offline", dir=str(place))
    with mock.patch.dict(os.environ, {"WANDB_MODE": "offline"}):  # Ray asks for a key otherwise
        return logged(system, folder, "wandb-files", logger)


# Restoring --------------------------------------------------------------------------------------

FLAGS = {
    "by default": {},
    "`resume_errored=True`": {"resume_errored": True},
    "`restart_errored=True`": {"restart_errored": True},
    "`resume_unfinished=False`": {"resume_unfinished": False},
    "`resume_unfinished=False, resume_errored=True`": {
        "resume_unfinished": False,
        "resume_errored": True,
    },
    "`resume_unfinished=False, restart_errored=True`": {
        "resume_unfinished": False,
        "restart_errored": True,
    },
}
"""Flags of ``Tuner.restore``; it refuses to resume and to restart the errored at once."""


def interrupt(job, system):
    """An experiment that Ctrl+C ends while its third evaluation runs; the first has failed."""
    with interrupted_by_signal():
        results = job.tuner(max_concurrent_trials=1).fit()
    assert len(results.errors) == 1
    assert len(system.values(results)) == 1, "it was not interrupted"
    assert turns(job.folder) == 3


@contextmanager
def interrupted_by_signal():
    """Ray's own word of a signal is no error of a test."""
    import signal

    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def after_restore(job, system, flags):
    """Goes on with an interrupted experiment, which must be sound in the end."""
    results = job.restored(**flags).fit()
    for error in results.errors:
        if isinstance(error, VaultError):  # every trial was suggested before
            raise error
    errored = bool(flags.get("resume_errored") or flags.get("restart_errored"))
    unfinished = flags.get("resume_unfinished", True)
    if job.num_samples > 0:  # of which those count that failed, or were open
        lost = (not errored) + (not unfinished)
        system.check(job, results, released=job.trials - lost)
        return WORKS
    shown = len(system.values(results))
    unseen = system.name == AGENTS and not unfinished  # an agent's host lives on
    assert job.trials - unseen <= shown <= job.trials + errored + unfinished, shown
    job.unseen = int(unseen)
    system.check(job, results, released=shown)
    if unseen:
        return UNSEEN
    return MORE if errored or unfinished else WORKS


def on_the_living(name):
    """A run of one set of flags."""

    def run(system, folder):
        with system.job(folder, system.interrupted(os.getpid())) as job:
            interrupt(job, system)
            return after_restore(job, system, FLAGS[name])

    run.__doc__ = (
        f"`Tuner.restore` {name}, in the process and on the Ray that began the experiment."
    )
    return run


def after_flags(name):
    """Where a search goes on until its plan is used up, what is resumed comes in addition."""
    flags = {"resume_unfinished": True} | FLAGS[name]
    cells = dict.fromkeys((RECORDS, TABLE, AGENTS), MORE) if any(flags.values()) else {}
    return cells if flags["resume_unfinished"] else cells | {AGENTS: UNSEEN}


for _name in FLAGS:
    row("Tuner.restore", f"restored {_name}", cells=after_flags(_name), ordinary=())(
        on_the_living(_name)
    )


@functools.cache
def _elsewhere(name):
    """How each set of flags has gone on in another process and on another Ray."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "e"
        return dict(clusters.restored_elsewhere(place, name, list(FLAGS), durable=True))


def on_another(name):
    """A run of one set of flags."""

    def run(system, folder):
        return _elsewhere(system.name)[name]

    run.__doc__ = (
        f"`Tuner.restore` {name}, in another process, on another Ray, with a vault in a database."
    )
    return run


for _name in FLAGS:
    row("Tuner.restore", f"elsewhere, {_name}", cells=after_flags(_name), ordinary=())(
        on_another(_name)
    )


GONE = {
    RECORDS: "The vault of this run is gone",
    REWARDS: "No vault is alive for this private trainable",
    DUETS: "No vault is alive for this private trainable",
    AGENTS: "The server of this federation is gone",
    TABLE: "holds another released table than this experiment started with",
}
"""What is said of a ledger that has ended with its driver, or of a table that was drawn anew."""


@row(
    "Tuner.restore",
    "elsewhere, ledger in memory",
    cells={name: f"refused: {words}" for name, words in GONE.items()},
)
def without_vault(system, folder):
    """`Tuner.restore` in another process, on another Ray, with no database."""
    (said,) = clusters.restored_elsewhere(
        folder, system.name, ["by default"], durable=False
    ).values()
    fixes = {
        RECORDS: "give it a database",
        TABLE: "Put that one back",
        AGENTS: "give it databases",
    }
    fix = fixes.get(system.name, "give both the same vault=")
    return _refused(str(said), GONE[system.name], GONE[system.name], fix)


# Where the driver runs --------------------------------------------------------------------------


@row("Where the driver runs", "Ray Job")
def ray_job(system, folder):
    """`ray job submit -- python script.py`."""
    with clusters.cluster(dashboard=True) as own:
        return str(clusters.submitted(own, folder, system.name))


@row(
    "Where the driver runs",
    "Ray Client",
    cells=every(f"refused: {BY_CLIENT}; submit a Ray Job", but={TABLE: LEARNS_NOTHING}),
)
def ray_client(system, folder):
    """`ray.init("ray://...")`."""
    with clusters.cluster(dashboard=False) as own:
        at = {"system": system.name, "address": own.client}
        said = str(clusters.told("client_scene", folder, own.environment, **at))
    return _refused(said, f"{BY_CLIENT}; submit a Ray Job", BY_CLIENT, "'ray job submit")


def _refused(said, shortly, *named):
    """A refusal in short, if it names the thing and the fix; else what a scene says."""
    if not said.startswith("raised "):
        return said
    assert all(words in said for words in named), said
    return f"refused: {shortly}"


# The page ---------------------------------------------------------------------------------------


def table():
    """What works with every search, and every other expected outcome, as Markdown."""
    rows = [(one.name, one.sentence, {s: one.expected(s) for s in SYSTEMS}) for one in ROWS]
    return f"Works with every search: {pages.exceptions(rows, [*SYSTEMS], WORKS)}"


if __name__ == "__main__":
    pages.main(MODULE, PAGE, table)
