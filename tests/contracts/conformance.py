"""What Tune and its users expect of a searcher, as a list of small checks.

A check drives a searcher through its hooks, as Tune does, with plain floats under the metric; it
needs no trials. Where a searcher differs, the check raises :class:`Differs` with the reason in a
few words. ``python -m tests.contracts.conformance --write`` brings the table of
``conformance.md`` up to date.
"""

from __future__ import annotations

import copy
import math
import tempfile
import uuid
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import ray.cloudpickle as cloudpickle
from ray import tune
from ray.tune.search import ConcurrencyLimiter, Searcher
from ray.tune.search.optuna import OptunaSearch

from privbo_plugins.errors import PrivacyWarning, UtilityWarning
from raytune_searchers import (
    DPFTSDESearch,
    DPGIBOSearch,
    DUETSSearch,
    FederationConfig,
    LDPATAGPUCBSearch,
    LDPGPUCBSearch,
    LDPMoMAGPUCBSearch,
    LDPTGPUCBSearch,
    POGPUCBSearch,
)
from raytune_searchers._channel import channel_of_trial
from tests.contracts import pages
from tests.inside import host_name, tell
from tests.raytune_searchers.hosts import LocalRay
from tests.raytune_searchers.runs import RECORDS, make_search

MODULE = "tests.contracts.conformance"
PAGE = Path(__file__).with_suffix(".md")

FINISHED = Searcher.FINISHED

Evaluate = Callable[[Any, str, Mapping[str, Any]], float]


class Differs(Exception):
    """A searcher does something else than a check expects."""


class NotApplicable(Exception):
    """A searcher has nothing that a check could look at."""


@dataclass(frozen=True)
class Subject:
    """A searcher under test.

    Attributes:
        name: For the table.
        make: Makes a searcher from any of ``metric``, ``mode``, ``space``,
            ``points_to_evaluate`` and ``seed``.
        evaluate: For a searcher with a plan: evaluates a suggestion as a real trial does and
            returns what the trial reports.
        space: The ``param_space`` of a check that asks for none of its own.
        points: Three configurations in it.
        where: From a configuration in it to a number between 0 and 1.
        metric: Under which its trials report; None if it has none of its own.
        planned: A searcher of the same kind that has a plan, if this one has none.
        ignored: Warnings that driving it with plain floats brings about.
        exempt: Checks that ask for what its algorithm cannot mean, by name, and why.
    """

    name: str
    make: Callable[..., Any]
    evaluate: Evaluate | None = None
    ignored: type[Warning] = Warning
    exempt: Mapping[str, str] = field(default_factory=dict)
    space: Mapping[str, Any] = field(default_factory=lambda: LINE)
    points: tuple[Mapping[str, Any], ...] = ({"x": 0.75}, {"x": 0.125}, {"x": 0.5})
    where: Callable[[Mapping[str, Any]], float] = lambda config: float(config["x"])
    metric: str | None = None
    planned: Subject | None = None


Run = Callable[[Subject, Path], None]


@dataclass(frozen=True)
class Check:
    """One expectation.

    Attributes:
        name: In the table.
        description: What is expected, in one line.
        run: Raises if it is not so.
    """

    name: str
    description: str
    run: Run


CHECKS = []


def check(name):
    """Registers a check; the first line of its docstring describes it."""

    def register(run):
        CHECKS.append(Check(name, str(run.__doc__).splitlines()[0], run))
        return run

    return register


def same_for_each(makes, table):
    """Registers checks that differ in some values: to each name what is expected, and these."""
    CHECKS.extend(Check(name, told, makes(*values)) for name, (told, *values) in table.items())


def outcome(one, subject, folder):
    """``"yes"``, ``"no: reason"`` or ``"not applicable: reason"``."""
    if one.name in subject.exempt:
        return f"not applicable: {subject.exempt[one.name]}"
    try:
        with warnings.catch_warnings(action="ignore", category=subject.ignored):
            one.run(subject, folder)
    except NotApplicable as reason:
        return f"not applicable: {reason}"
    except Differs as reason:
        return f"no: {reason}"
    except Exception as error:
        return f"no: raises {type(error).__name__}"
    return "yes"


# Driving a searcher -------------------------------------------------------------------------

LINE = {"x": tune.uniform(0.0, 1.0)}

NESTED = {"x": tune.uniform(0.0, 1.0), "n": {"y": tune.uniform(-2.0, 2.0), "c": 5}, "k": "v"}

METRIC = "loss"


def expect(condition, reason):
    """Raises :class:`Differs` unless the condition holds."""
    if not condition:
        raise Differs(reason)


def expect_error(call, reason, *, text=""):
    """Expects any error whose message holds the text."""
    try:
        call()
    except Exception as error:
        expect(text in str(error), f"the error does not name {text}")
        return
    raise Differs(reason)


def on(subject, space=None, **kwargs):
    """A searcher as ``Tuner.fit`` prepares it: with a space, a metric and a mode."""
    searcher = subject.make(seed=3, **kwargs)
    configure(subject, searcher, space)
    return searcher


def configure(subject, searcher, space=None):
    """What Tune does before the first trial."""
    wanted = dict(subject.space if space is None else space)
    metric, mode = subject.metric or METRIC, "min"
    taken = searcher.set_search_properties(metric, mode, wanted, num_samples=-1)
    expect(taken, "takes no space from the Tuner")


def result(value, step=1, **more):
    """A result as Tune hands it on."""
    return {METRIC: value, "training_iteration": step, "time_total_s": 1.0, **more}


def finish(searcher, trial, value):
    """A trial reports once and completes."""
    searcher.on_trial_result(trial, result(value))
    searcher.on_trial_complete(trial, result(value))


def suggested(searcher, trial):
    """A suggestion that must be a configuration."""
    config = searcher.suggest(trial)
    expect(isinstance(config, dict), f"suggests {config}")
    return dict(config)


def run_alone(searcher, n, objective, prefix="t"):
    """Trials one after another."""
    configs = []
    for i in range(n):
        config = suggested(searcher, f"{prefix}{i}")
        configs.append(copy.deepcopy(config))
        finish(searcher, f"{prefix}{i}", objective(config))
    return configs


def handed(searcher, n, prefix="t"):
    """Asks n times and returns the trials that got a configuration."""
    trials = [f"{prefix}{i}" for i in range(n)]
    return [trial for trial in trials if isinstance(searcher.suggest(trial), dict)]


def restored(subject, searcher, folder):
    """A blank searcher that has read what another one saved."""
    path = str(folder / f"{uuid.uuid4().hex}.pkl")
    searcher.save(path)
    blank = subject.make()
    blank.restore(path)
    return blank


# Search spaces ------------------------------------------------------------------------------

DOMAINS = {
    "uniform": (tune.uniform(-2.0, 3.0), lambda v: -2.0 <= v <= 3.0),
    "loguniform": (tune.loguniform(1e-4, 1e-1), lambda v: 1e-4 <= v <= 1e-1),
    "quniform": (tune.quniform(0.0, 1.0, 0.25), lambda v: v % 0.25 == 0 and 0 <= v <= 1),
    "qloguniform": (tune.qloguniform(0.5, 4.0, 0.5), lambda v: v % 0.5 == 0 and 0 < v <= 4),
    "randint": (tune.randint(0, 3), lambda v: type(v) is int and 0 <= v < 3),
    "lograndint": (tune.lograndint(1, 5), lambda v: 1 <= v < 5),
    "qrandint": (tune.qrandint(1, 10, 3), lambda v: v in (3, 6, 9)),
    "qrandint with q=1": (tune.qrandint(0, 3, 1), lambda v: v in (0, 1, 2)),
    "qlograndint": (tune.qlograndint(2, 16, 2), lambda v: v % 2 == 0 and 2 <= v <= 16),
    "choice": (tune.choice(["a", None, 2, [1], {"k": 1}]), lambda v: v != []),
    "a single value": (tune.randint(3, 4), lambda v: v == 3),
}
"""Domains of Tune, and whether a value is one of those that Tune itself draws from them."""


@check("space is converted")
def space_is_converted(subject, folder):
    """A `param_space` of any domains and of constants becomes values that Tune could draw."""
    space = {name: domain for name, (domain, _) in DOMAINS.items()} | {"k": 7, "list": [1, 2]}
    for config in run_alone(on(subject, space), 12, lambda c: float(c["uniform"])):
        expect(set(config) - {"k", "list"} == set(DOMAINS), "suggests other names")
        for name, (_, drawn) in DOMAINS.items():
            expect(drawn(config[name]), f"suggests {config[name]} of {name}")


@check("nested space")
def nested_space(subject, folder):
    """Nested domains are suggested nested, beside the constants."""
    for config in run_alone(on(subject, NESTED), 4, lambda c: float(c["x"])):
        expect(isinstance(config.get("n"), dict), "suggests flat names")
        expect(-2.0 <= config["n"]["y"] <= 2.0, "leaves the range")


@check("what cannot be searched is refused")
def what_cannot_be_searched_is_refused(subject, folder):
    """`grid_search` and `randn` in the space are errors, not ignored."""
    for domain in (tune.grid_search([1, 2]), tune.randn(0, 1)):
        expect_error(lambda d=domain: on(subject, {"g": d, **LINE}), "accepts it")


@check("domain in a list is refused or kept")
def domain_in_a_list_is_refused_or_kept(subject, folder):
    """A domain inside a list is an error, or suggested in its place."""
    try:
        searcher = on(subject, {"l": [1, tune.uniform(2, 3)], **LINE})
    except Exception:
        return
    values = suggested(searcher, "t")["l"]
    expect(isinstance(values, list) and 2 <= values[1] <= 3, "suggests something else")


@check("space is left alone")
def space_is_left_alone(subject, folder):
    """The user's dictionary is not changed."""
    space = copy.deepcopy(NESTED)
    inner = space["n"]
    searcher = on(subject, space)
    run_alone(searcher, 2, lambda c: float(c["x"]))
    same = set(space) == set(NESTED) and set(inner) == set(NESTED["n"])
    expect(same and isinstance(inner["y"], type(NESTED["n"]["y"])), "changes it")


@check("space as an argument")
def space_as_an_argument(subject, folder):
    """The space may be given to the searcher instead of the Tuner."""
    searcher = subject.make(space=NESTED, metric=METRIC, mode="min", seed=3)
    expect(-2 <= suggested(searcher, "t")["n"]["y"] <= 2, "leaves the range")


@check("a second space is refused")
def a_second_space_is_refused(subject, folder):
    """`set_search_properties` refuses a space that is not the searcher's own, or returns False."""
    searcher = subject.make(space=LINE, metric=METRIC, mode="min")
    try:
        taken = searcher.set_search_properties(METRIC, "min", {"z": tune.uniform(0, 1)})
    except ValueError as error:
        expect("param_space" in str(error), "the error does not name param_space")
        return
    expect(not taken, "takes it")


def _names_the_searcher(given):
    def run(subject, folder):
        searcher = subject.make(**given)
        expect_error(lambda: searcher.suggest("t"), "suggests", text=subject.name)

    return run


same_for_each(_names_the_searcher, {
    "no space is named": (
        "Without a space, `suggest` raises an error that names the searcher.",
        {"metric": METRIC, "mode": "min"},
    ),
    "no metric is named": (
        "Without a metric, `suggest` raises an error that names the searcher.", {"space": LINE}
    ),
})  # fmt: skip


# Metric and mode ----------------------------------------------------------------------------


def _takes_later(metric, known):
    def run(subject, folder):
        searcher = subject.make(seed=3)
        searcher.set_search_properties(metric, "max", dict(subject.space))
        expect((searcher.metric, searcher.mode) == (known, "max"), "keeps others")
        suggested(searcher, "t")
        searcher.on_trial_complete("t", {known: 1.0, "training_iteration": 1})
        suggested(searcher, "u")

    return run


same_for_each(_takes_later, {
    "metric and mode may come late": (
        "Metric and mode of `TuneConfig` are taken where the searcher has none.", "score", "score"
    ),
    "mode alone": (
        "With a mode alone, the metric is Tune's anonymous `_metric`.", None, "_metric"
    ),
})  # fmt: skip


@check("wrong mode is refused")
def wrong_mode_is_refused(subject, folder):
    """A mode other than min and max is an error."""
    expect_error(lambda: subject.make(mode="lowest", metric=METRIC), "accepts it")


def _drifts(mode, kind):
    """The mean of x over the last of 40 trials on the objective x lies at its better end."""

    def run(subject, folder):
        searcher = subject.make(seed=3)
        searcher.set_search_properties(METRIC, mode, dict(subject.space))
        configs = run_alone(searcher, 40, lambda config: kind(subject.where(config)))
        late = float(np.mean([subject.where(config) for config in configs[-10:]]))
        if mode == "min":
            expect(late < 0.35, "does not get smaller")
        else:
            expect(late > 0.65, "does not get larger")

    return run


same_for_each(_drifts, {
    "min is minimised": ("Later suggestions lie where the metric is small.", "min", float),
    "max is maximised": ("Later suggestions lie where the metric is large.", "max", float),
    "NumPy numbers are learned from": ("A metric may be a `numpy.float32`.", "min", np.float32),
})  # fmt: skip


@check("seed")
def seed(subject, folder):
    """Two searchers with one seed begin alike."""
    first, second = (run_alone(on(subject), 3, lambda c: 0.5) for _ in range(2))
    expect(first == second, "begin differently")


# Points to evaluate -------------------------------------------------------------------------


@check("points come first")
def points_come_first(subject, folder):
    """`points_to_evaluate` are suggested first, in order, to parallel trials too."""
    searcher = on(subject, points_to_evaluate=list(subject.points))
    values = [subject.where(suggested(searcher, f"t{i}")) for i in range(3)]
    expect(np.allclose(values, [subject.where(p) for p in subject.points]), "suggests others")
    for i in range(3):
        finish(searcher, f"t{i}", 0.5)
    suggested(searcher, "later")


def _point_is_suggested(point):
    def run(subject, folder):
        config = suggested(on(subject, NESTED, points_to_evaluate=[point]), "t")
        expect(np.allclose([config["x"], config["n"]["y"]], [0.75, -1.5]), "suggests another")

    return run


same_for_each(_point_is_suggested, {
    "flat points": (
        "A point may name nested parameters flat, as `n/y`.", {"x": 0.75, "n/y": -1.5}
    ),
    "nested points": (
        "A point may be nested as the space is.", {"x": 0.75, "n": {"y": -1.5}}
    ),
})  # fmt: skip


@check("unknown name in a point")
def unknown_name_in_a_point(subject, folder):
    """A point that names an unknown parameter is an error."""
    points = [{"z": 0.5}]
    expect_error(lambda: on(subject, points_to_evaluate=points).suggest("t"), "drops it silently")


@check("point out of range")
def point_out_of_range(subject, folder):
    """A point outside the space is an error, or at least not evaluated."""
    try:
        config = on(subject, points_to_evaluate=[{"x": 7.0}]).suggest("t")
    except Exception:
        return
    expect(config["x"] <= 1, "suggests it")


# What trials report -------------------------------------------------------------------------


def expect_alive(subject, searcher, n=3):
    """The search goes on with configurations inside the space."""
    for config in run_alone(searcher, n, lambda c: 0.5, "after"):
        expect(0 <= subject.where(config) <= 1, "leaves the range")


def asks(*trials):
    return lambda searcher: [suggested(searcher, trial) for trial in trials]


def reports(trial, told):
    return lambda searcher: searcher.on_trial_result(trial, told)


def ends(trial, told=None, **how):
    return lambda searcher: searcher.on_trial_complete(trial, told, **how)


def finishes_with(trial, value=0.5):
    return lambda searcher: finish(searcher, trial, value)


BARE = {"training_iteration": 1}

HARMLESS = {
    "NaN and infinite metrics": (
        "NaN, inf and -inf as a metric end the trial, not the search.",
        [
            event
            for i, value in enumerate([math.nan, math.inf, -math.inf] * 3)
            for event in (asks(f"t{i}"), finishes_with(f"t{i}", value))
        ],
    ),
    "reporting too often": (
        "A report after the completion is harmless.",
        [asks("t"), finishes_with("t"), reports("t", result(0.5, 3))],
    ),
    "additional completion": (
        "A second completion of a finished trial is harmless.",
        [asks("t"), finishes_with("t"), ends("t", result(0.9, 4)), ends("t", error=True)],
    ),
    "report of an unknown trial": (
        "A report of a trial that was never suggested is harmless.",
        [asks("t"), reports("stranger", result(0.5)), finishes_with("t")],
    ),
    "completion of an unknown trial": (
        "A completion of a trial that was never suggested is harmless.",
        [
            asks("t"), ends("stranger", result(0.5)), ends("stranger 2", error=True),
            ends("stranger 3"), finishes_with("t"),
        ],
    ),
    "report without the metric": (
        "An intermediate report may lack the metric.",
        [asks("t"), reports("t", BARE), finishes_with("t")],
    ),
    "result without the metric": (
        "A last result without the metric ends the trial, not the search.",
        [event for t in "abc" for event in (asks(t), ends(t, BARE))],
    ),
    "completion without result": (
        "A completion without result and without error ends the trial, not the search.",
        [event for t in "abc" for event in (asks(t), ends(t))],
    ),
    "failed trials": (
        "Trials that end with an error do not end the search.",
        [event for t in "abcde" for event in (asks(t), ends(t, error=True))],
    ),
    "failed after reporting": (
        "A trial may report, and fail afterwards with its last result.",
        [asks("t"), reports("t", result(0.5)), ends("t", result(0.5), error=True)],
    ),
}  # fmt: skip
"""What a trial may do, after which a search goes on."""


def _goes_on_after(events):
    def run(subject, folder):
        searcher = on(subject)
        for event in events:
            event(searcher)
        expect_alive(subject, searcher)

    return run


same_for_each(_goes_on_after, HARMLESS)


@check("restart under a new id")
def restart_under_a_new_id(subject, folder):
    """A failed trial that Tune makes anew (`restart_errored`) completes under its new id."""
    searcher = on(subject)
    config = suggested(searcher, "old")
    searcher.on_trial_complete("old", error=True)
    finished = result(0.5, **{f"config/{name}": value for name, value in config.items()})
    searcher.on_trial_result("new", finished)
    searcher.on_trial_complete("new", finished)
    expect_alive(subject, searcher)


@check("one id asks twice")
def one_id_asks_twice(subject, folder):
    """A trial that asks again gets its configuration again."""
    searcher = on(subject)
    expect(searcher.suggest("t") == searcher.suggest("t"), "suggests another")
    finish(searcher, "t", 0.5)
    expect_alive(subject, searcher)


@check("no permanent stall")
def no_permanent_stall(subject, folder):
    """While no trial is out, `suggest` gives a configuration, however the others ended."""
    searcher, count = on(subject), 0
    for _ in range(12):
        trials = handed(searcher, 4, f"r{count}-")
        expect(trials, "suggests None while no trial is out")
        for trial in reversed(trials):
            count += 1
            if count % 4 == 0:
                searcher.on_trial_complete(trial, error=True)
            elif count % 4 == 1:
                searcher.on_trial_complete(trial)
            else:
                finish(searcher, trial, 0.5 if count % 4 == 2 else math.nan)


# Limits on trials at once -------------------------------------------------------------------


@check("`set_max_concurrency` is obeyed")
def set_max_concurrency_is_obeyed(subject, folder):
    """A searcher that says that it limits trials itself does so."""
    searcher = on(subject)
    if not searcher.set_max_concurrency(2):
        raise NotApplicable("leaves it to `ConcurrencyLimiter`")
    expect_limited(searcher)


@check("`ConcurrencyLimiter`")
def concurrencylimiter(subject, folder):
    """Wrapped, it never has more trials out, and goes on when one ends."""
    limited = ConcurrencyLimiter(subject.make(seed=3), max_concurrent=2)
    configure(subject, limited)
    expect_limited(limited)


def expect_limited(searcher):
    """Two trials at once; later, a searcher may wait for the other trial of a pair."""
    out = handed(searcher, 4, "a")
    expect(len(out) == 2, f"hands out {len(out)} of 2")
    for i in range(10):
        done = out.pop(0)
        if i % 3 == 2:
            searcher.on_trial_complete(done, error=True)
        else:
            finish(searcher, done, 0.5)
        out += handed(searcher, 3, f"b{i}-")
        expect(len(out) in (1, 2), f"hands out {len(out)} of 2")


@check("limiter after a restore")
def limiter_after_a_restore(subject, folder):
    """Resumed trials count towards the limit, and their completions make room."""
    limited = ConcurrencyLimiter(subject.make(seed=3), max_concurrent=2)
    configure(subject, limited)
    out = handed(limited, 2)
    path = str(folder / "limited.pkl")
    limited.save(path)
    state = limited.get_state()
    again = ConcurrencyLimiter(subject.make(), max_concurrent=2)
    again.set_state(state)
    again.restore(path)
    for trial in out:
        again.on_trial_result(trial, result(0.5))
    expect(not handed(again, 1, "early"), "hands out more than the limit")
    for trial in out:
        again.on_trial_complete(trial, result(0.5))
    expect_limited(again)


# Saving and restoring -----------------------------------------------------------------------


def from_folder(subject, searcher, folder):
    """A blank searcher that has read the folder of an experiment."""
    searcher.save_to_dir(str(folder), "session")
    again = subject.make()
    again.restore_from_dir(str(folder))
    return again


def pickled(_subject, searcher, _folder):
    """A copy by pickle."""
    return cloudpickle.loads(cloudpickle.dumps(searcher))


def _goes_on_as(copied, nested):
    def run(subject, folder):
        searcher = on(subject, NESTED if nested and subject.space is LINE else None)
        run_alone(searcher, 2, subject.where)
        opened = {trial: suggested(searcher, trial) for trial in ("open", "open too")}
        again = copied(subject, searcher, folder)
        expect(again.metric == (subject.metric or METRIC), "forgets the metric")
        for trial, config in opened.items():
            expect(again.suggest(trial) == config, "forgets what it suggested")
            finish(again, trial, 0.5)
        expect_alive(subject, again)

    return run


same_for_each(_goes_on_as, {
    "save and blank restore": (
        "A searcher made without arguments goes on from the file; no further call is needed.",
        restored, False,
    ),
    "unfinished trials are restored": (
        "A trial that was out keeps its configuration, and may complete later.", restored, True
    ),
    "folder of an experiment": ("`save_to_dir` and `restore_from_dir` carry it over.",
                                from_folder, False),
    "pickled under way": (
        "A pickled copy of a used searcher goes on, open trials included.", pickled, False
    ),
})  # fmt: skip


@check("points are restored")
def points_are_restored(subject, folder):
    """Points that were not handed out before are, and the others are not again."""
    searcher = on(subject, points_to_evaluate=list(subject.points))
    finish_after = suggested(searcher, "1")
    finish(searcher, "1", subject.where(finish_after))
    again = restored(subject, searcher, folder)
    values = [subject.where(suggested(again, trial)) for trial in ("2", "3")]
    expect(np.allclose(values, [subject.where(p) for p in subject.points[1:]]), "suggests others")


@check("trials after the last save")
def trials_after_the_last_save(subject, folder):
    """Trials handed out after the save, and lost with the driver, do not block the restored."""
    searcher = on(subject)
    run_alone(searcher, 2, lambda c: 0.5)
    path = str(folder / "early.pkl")
    searcher.save(path)
    handed(searcher, 20, "lost")
    again = subject.make()
    again.restore(path)
    expect_alive(subject, again)


@check("skipped trials")
def skipped_trials(subject, folder):
    """Open trials that are not resumed (`resume_unfinished=False`) do not stop the search."""
    searcher = on(subject)
    expect(handed(searcher, 3, "skipped"), "suggests None")
    expect_alive(subject, restored(subject, searcher, folder), n=12)


@check("pickled before it is used")
def pickled_before_it_is_used(subject, folder):
    """A pickled copy of a new searcher can be set up and used, as `Tuner.restore` does."""
    searcher = subject.make(seed=3)
    again = cloudpickle.loads(cloudpickle.dumps(searcher))
    configure(subject, again)
    expect_alive(subject, again)


@check("pickle stays small")
def pickle_stays_small(subject, folder):
    """After 30 trials the pickle is below 64 kB."""
    searcher = on(subject)
    run_alone(searcher, 30, subject.where)
    size = len(cloudpickle.dumps(searcher))
    expect(size < 2**16, f"{size // 1024} kB")


# The plan's end -----------------------------------------------------------------------------


def to_the_end(subject, searcher, inner):
    """Real evaluations, two at a time, until the searcher, or one around it, has finished."""
    evaluate = subject.evaluate
    if evaluate is None:
        raise NotApplicable("has no plan")
    for i in range(200):
        pair = {t: searcher.suggest(t) for t in (f"p{i}", f"q{i}")}
        for trial, config in pair.items():
            if isinstance(config, dict):
                finish(searcher, trial, evaluate(inner, trial, config))
                yield trial
        if FINISHED in pair.values():
            return
        expect(any(pair.values()), "suggests None while no trial is out")
    raise Differs("does not finish")


def _stays(subject, searcher, folder):
    return searcher


def _finishes(limited, then):
    def run(subject, folder):
        subject = subject.planned or subject
        searcher = subject.make(seed=3)
        asked = ConcurrencyLimiter(searcher, max_concurrent=1) if limited else searcher
        configure(subject, asked)
        expect(list(to_the_end(subject, asked, searcher)), "finishes at once")
        again = then(subject, asked, folder)
        warnings.filterwarnings("ignore", "The plan of this search is used up", UtilityWarning)
        expect(all(again.suggest(f"late{i}") == FINISHED for i in range(3)), "begins again")

    return run


same_for_each(_finishes, {
    "finishes": (
        "At the plan's end `suggest` returns `FINISHED`, and goes on returning it.", False, _stays
    ),
    "stays finished after a restore": (
        "A restored searcher knows that the plan has been used up.", False, restored
    ),
    "finishes through a limiter": ("`ConcurrencyLimiter` passes `FINISHED` on.", True, _stays),
})  # fmt: skip


# The searchers ------------------------------------------------------------------------------


def maker(kind, *args, **settings):
    """Makes a searcher of settings, of which a check may change any."""

    def make(space=None, metric=None, mode=None, **kwargs):
        own = {"search_space": space, "metric": metric, "mode": mode}
        return kind(*args, **(own | settings | kwargs))

    return make


def dp_gibo(vault=None):
    """DPGIBOSearch with a plan of 10 trials on a line, and a vault in memory or in a database."""
    make = maker(make_search, n_starts=5, vault=vault)
    return Subject(DPGIBOSearch.__name__, make, evaluate_privately, PrivacyWarning)


def evaluate_privately(search, trial, config):
    """What a trial wrapped by ``search.private`` does with its losses."""
    channel = channel_of_trial(host_name(search))
    entry = channel.call("enter", trial, uuid.uuid4().hex)
    choices, given, _ = entry.details
    x = cloudpickle.loads(choices).encode(config, given)
    return tell(channel, trial, x, (config["x"] - RECORDS) ** 2)


def rewards(kind, epsilon=math.inf, vault=None):
    """A search on rewards with narrow confidence intervals.

    Without privacy it has no ledger; the hooks are the same.
    """
    exempt = {}
    more = {}
    if kind is LDPMoMAGPUCBSearch:
        more["replays"] = 4
        reason = "begins a point when the replays of the one before are done"
        exempt = dict.fromkeys(("points come first", "points are restored"), reason)
    make = maker(
        kind, epsilon, value_range=(0.0, 1.0), beta_scale=0.3, lengthscale=0.4, n_trials=100,
        vault=vault, **more,
    )  # fmt: skip
    return Subject(kind.__name__, make, ignored=PrivacyWarning, exempt=exempt)


REWARDS = (LDPGPUCBSearch, LDPTGPUCBSearch, LDPATAGPUCBSearch, LDPMoMAGPUCBSearch)
"""The searches on privatised rewards."""


def duets(epsilon=math.inf, vault=None):
    """DUETSSearch with two agents; without privacy it has no ledger."""
    make = maker(
        DUETSSearch, 2, epsilon=epsilon, value_range=(0.0, 1.0), n_trials=40, discretisation=256,
        vault=vault,
    )  # fmt: skip
    return Subject(DUETSSearch.__name__, make, ignored=PrivacyWarning)


OF_A_SPACE = (
    "space is converted", "nested space", "space is left alone", "space as an argument",
    "no space is named", "flat points", "nested points",
)  # fmt: skip
"""Checks with a space of their own."""

ROWS = np.linspace(0.1, 0.9, 12)[:, None]


def rows():
    """POGPUCBSearch over two rows that may be asked again and again; with a plan, over twelve."""
    whole = "a trial is a row of the table, and there is no other space"
    known = {"lengthscale": 0.3, "signal_variance": 0.1, "noise_variance": 1e-2}

    def search(Z, search_space=None, **given):
        return POGPUCBSearch(Z, **({"parameter": "x"} | known | given))

    planned = Subject(
        POGPUCBSearch.__name__,
        maker(search, ROWS),
        lambda _search, _trial, config: -abs(config["x"] - 8) / 12,
        PrivacyWarning,
        space={},
    )
    return Subject(
        POGPUCBSearch.__name__, maker(search, ROWS[[0, -1]], repeats=True),
        ignored=PrivacyWarning, exempt=dict.fromkeys(OF_A_SPACE, whole), space={},
        points=({"x": 1}, {"x": 0}, {"x": 1}), planned=planned,
    )  # fmt: skip


def agents():
    """DPFTSDESearch with two agents, whose configurations are tags."""
    tags = "what agents tune stands in no trial's config"
    learns = "what agents report is their secret: results know one metric, `federation_round`"
    names = (
        *OF_A_SPACE, "points come first", "unknown name in a point", "point out of range",
        "points are restored", "seed",
    )  # fmt: skip
    others = (
        "no metric is named", "metric and mode may come late", "mode alone", "min is minimised",
        "max is maximised", "NumPy numbers are learned from",
    )  # fmt: skip
    config = FederationConfig(n_agents=2, epsilon=4.0, n_rounds=2, n_startup=1, n_features=20)

    def search(metric=None, mode=None, **given):
        return DPFTSDESearch(config, mode=mode or "max", **given)

    make = maker(search, search_space=dict(LINE), n_trials=3, deadline=30.0)
    return Subject(
        DPFTSDESearch.__name__,
        make,
        evaluate_as_agent,
        Warning,
        exempt=dict.fromkeys(names, tags) | dict.fromkeys(others, learns),
        space={},
        where=lambda found: found["agent"] / 2,
        metric="federation_round",
    )


def evaluate_as_agent(search, trial, config):
    """What a trial wrapped by ``search.private`` does: its agent's host evaluates."""
    told = search.private(lambda agent, config: 1.0 - abs(config["x"] - 0.5))(dict(config))
    return float(told["federation_round"])


def documented():
    """The searches that the table compares."""
    return [dp_gibo(), *map(rewards, REWARDS[:1]), rows(), agents(), duets(), optuna()]


def optuna():
    """Tune's own OptunaSearch with its default sampler."""
    return Subject(OptunaSearch.__name__, OptunaSearch)


# The table ----------------------------------------------------------------------------------


def table():
    """What every searcher does, and where one differs, as Markdown."""
    subjects, rows = documented(), []
    with tempfile.TemporaryDirectory() as root:
        for number, one in enumerate(CHECKS):
            outcomes = {}
            for subject in subjects:
                folder = Path(root) / f"{number}{subject.name}"
                folder.mkdir()
                outcomes[subject.name] = outcome(one, subject, folder)
            rows.append((one.name, one.description, outcomes))
    names = [subject.name for subject in subjects]
    return f"Every search does this: {pages.exceptions(rows, names, 'yes')}"


def main():
    """Prints the table, or brings its page up to date."""
    import logging

    import optuna as optuna_package

    optuna_package.logging.set_verbosity(optuna_package.logging.ERROR)
    logging.getLogger("ray.tune").setLevel(logging.ERROR)
    with LocalRay().installed():
        pages.main(MODULE, PAGE, table)


if __name__ == "__main__":
    main()
