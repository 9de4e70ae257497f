"""No frame that an exception leads to holds a record: neither of its traceback, nor beneath it.

A frame knows the one that called it (``f_back``), and lives as long as anybody who holds the
exception: a traceback that was cut leads to all that was cut off.
"""

import functools
import sqlite3
import sys
import types
from collections.abc import Mapping

import numpy as np
import pytest
from scipy.stats import uniform
from sklearn.pipeline import make_pipeline

from optuna_samplers import private_objective
from privbo_plugins import Curator
from privbo_plugins.errors import VaultError
from privbo_plugins.store.transaction import Transaction
from sklearn_search import PrivateSearch
from tests.drivers import ON_STUDIES, begin
from tests.inside import end_host
from tests.raytune_searchers import hosts
from tests.raytune_searchers.hosts import evaluate
from tests.sklearn_search.problems import Telling, halves

pytestmark = [
    pytest.mark.usefixtures("quiet"),
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:ray.*"),
    pytest.mark.filterwarnings("ignore::privbo_plugins.errors.UtilityWarning"),
]

OWN = ("privbo_plugins", "optuna_samplers", "raytune_searchers", "sklearn_search", "functools")

N = 40


# What an exception leads to ---------------------------------------------------------------------


def _running():
    """Frames that go on whatever becomes of the exception: a test's, which knows the secret."""
    found = set()
    for frame in sys._current_frames().values():
        now = frame
        while now is not None:
            found.add(id(now))
            now = now.f_back
    return found


def _of_error(error):
    yield from (error.__traceback__, error.__context__, error.__cause__, error.args)
    yield from (vars(error), getattr(error, "exceptions", ()))


def _of_frame(frame):
    callers = frame.f_code is caught.__code__ or frame.f_globals["__name__"] == hosts.__name__
    if not callers:  # who hold what they call with, and stand for a user and for Tune
        yield from (frame.f_back, dict(frame.f_locals))


def _of_function(function):
    if function.__module__.partition(".")[0] in OWN:  # a user's knows its own data
        yield from (cell.cell_contents for cell in function.__closure__ or ())


def _of_object(thing):
    if type(thing).__module__.partition(".")[0] in OWN:
        yield getattr(thing, "__dict__", None)
        yield from (getattr(thing, name, None) for name in getattr(thing, "__slots__", ()))


_BENEATH = {
    BaseException: _of_error,
    types.TracebackType: lambda trace: (trace.tb_frame, trace.tb_next),
    types.FrameType: _of_frame,
    Mapping: lambda mapping: mapping.values(),
    (list, tuple, set, frozenset): iter,
    functools.partial: lambda made: (made.func, made.args, made.keywords),
    types.MethodType: lambda method: (method.__self__,),
    types.FunctionType: _of_function,
    object: _of_object,
}
"""What one thing holds, by its kind."""


def _beneath(thing):
    kind = next(kind for kind in _BENEATH if isinstance(thing, kind))
    yield from _BENEATH[kind](thing)


def frames_with(error, secret):
    """Where a number of a secret can be reached from an exception."""
    numbers, seen = set(secret.ravel().tolist()), _running()
    open_ = [(error, "error")]
    kept, found = [], []
    while open_:
        thing, where = open_.pop()
        if id(thing) in seen or thing is None:
            continue
        seen.add(id(thing))
        kept.append(thing)  # an id is that of one thing only as long as it lives
        if isinstance(thing, types.FrameType):
            where = thing.f_code.co_qualname
        if isinstance(thing, np.ndarray) and thing.dtype.kind == "f":
            found += [where] if numbers & set(thing.ravel().tolist()) else []
        elif isinstance(thing, float):
            found += [where] if thing in numbers else []
        elif isinstance(thing, str):
            found += [where] if any(repr(number) in thing for number in numbers) else []
        else:
            open_ += [(part, where) for part in _beneath(thing)]
    return found


def caught(call):
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError("Nothing was raised.")


def test_control_a_frame_that_was_cut_off_is_found():
    secret = np.array([0.7182818284590452])

    def outer(losses):
        inner()

    def inner():
        raise ValueError

    error = caught(lambda: outer(secret))
    while error.__traceback__ is not None and error.__traceback__.tb_next is not None:
        error.__traceback__ = error.__traceback__.tb_next
    assert frames_with(error, secret)
    assert frames_with(caught(lambda: inner()), secret) == []


# Optuna -----------------------------------------------------------------------------------------


def raising(secret):
    raise ValueError(f"at {secret!r}", secret)


def in_a_context(secret):
    try:
        raising(secret)
    except ValueError as error:
        raise KeyError(*secret) from error


def unusable(secret):
    return {"losses": secret}


def good(secret):
    return secret if secret.size > 1 else float(secret[0])


WAYS = {
    "raises": raising, "raises from another": in_a_context, "returns something else": unusable,
    "fails while it is stored": good,
}  # fmt: skip


def _secret(n=N):
    return np.random.default_rng(7).uniform(0.2, 0.8, n)


def _failing(way, monkeypatch):
    """Storing fails, after the private value has come into the engine."""
    if way == "fails while it is stored":

        def fails(*_, **__):
            raise VaultError("The vault is gone.")

        for name in ("finish", "release", "takes_token"):
            monkeypatch.setattr(Transaction, name, fails)


@pytest.mark.parametrize("system", ON_STUDIES)
@pytest.mark.parametrize("way", WAYS)
def test_what_leaves_a_study_leads_to_no_secret(system, way, monkeypatch):
    hosted = ON_STUDIES[system]()
    secret = _secret(1 if np.ndim(hosted.outcome(0.5)) == 0 else N)

    def objective(trial):
        trial.suggest_float("x", 0, 1)
        return WAYS[way](secret)

    private, study = hosted.private(objective), hosted.study()
    _failing(way, monkeypatch)
    assert frames_with(caught(lambda: study.optimize(private, n_trials=1)), secret) == []


@pytest.mark.parametrize("system", ["records", "any sampler"])
@pytest.mark.parametrize("way", ["returns something else", "fails while it is stored"])
def test_what_leaves_a_loop_of_ask_and_tell_leads_to_no_secret(system, way, monkeypatch):
    hosted, secret = ON_STUDIES[system](), _secret()
    study = hosted.study()
    if system == "records":
        tell = hosted.sampler.tell_private
    else:
        tell = private_objective(lambda trial: 0, mu=1.0, n_trials=3).tell_private
    trial = study.ask()
    trial.suggest_float("x", 0, 1)
    _failing(way, monkeypatch)
    hand = {"a": secret} if way == "returns something else" else secret
    assert frames_with(caught(functools.partial(tell, trial, hand)), secret) == []


@pytest.mark.parametrize(
    ("act", "fails"), [("release", "charge"), ("release", "put_table"), ("evaluate", "release")]
)
def test_what_leaves_a_curator_leads_to_no_row_or_outcome(act, fails, monkeypatch):
    rows, y = (np.random.default_rng(key).uniform(0.1, 0.4, (N, 2)) for key in (5, 6))
    curator = Curator(
        rows, epsilon=1.0, delta=1e-6, bounds=[(-0.5, 0.5)] * 2, outcomes=lambda row: y[row, 0],
        outcome_epsilon=1.0, outcome_range=(0.0, 1.0),
    )  # fmt: skip

    def refused(*_):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(Transaction, fails, refused)
    error = caught(curator.release if act == "release" else lambda: curator.evaluate(3))
    assert isinstance(error, VaultError)
    secret = rows if act == "release" else y  # whose curator holds the rows
    assert frames_with(error, secret) == []


# Ray Tune ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bound", [False, True], ids=["closed over", "with_parameters"])
@pytest.mark.parametrize("system", ["records", "rewards", "duets"])
@pytest.mark.usefixtures("local_hosts")
def test_what_leaves_a_trainable_leads_to_no_secret(system, bound, way, monkeypatch, tmp_path):
    run = begin(system, "ray", tmp_path)
    search, secret = run.search, _secret(N if run.system.size else 1)

    def trainable(config, data=secret):
        return WAYS[way](data)

    private = search.private(trainable, **run.system.named)
    if bound:
        private = functools.partial(private, data=secret)
    _failing(way, monkeypatch)
    error = evaluate(search, private, "t0", search.suggest("t0")).error
    end_host(search)
    assert error is not None
    assert frames_with(error, secret) == []


# scikit-learn -----------------------------------------------------------------------------------


class Deep(Telling):
    """Fails while it is fitted, in functions of its own and with a cause."""

    def fit(self, X, y):
        try:
            return super().fit(X, y)
        except ValueError as error:
            raise ValueError("too few classes") from error


@pytest.mark.parametrize("given", [True, False], ids=["X_valid", "held out"])
@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.parametrize(
    ("estimator", "kind"),
    [
        (Telling(fails=True), ValueError),
        (Deep(fails=True), ValueError),
        (make_pipeline(Deep(fails=True)), ValueError),
        (Telling(chokes=True), Exception),
    ],
    ids=["fit", "fit with a cause", "a pipeline's fit", "predict"],
)
def test_what_leaves_a_search_leads_to_no_validation_record(estimator, kind, n_jobs, given):
    rng = np.random.default_rng(5)
    X, y = rng.uniform(0.1, 0.9, size=(N, 3)), np.arange(N) % 2
    train, valid = halves(N)
    name = "deep__a" if hasattr(estimator, "steps") else "a"
    settings = {"mu": 1, "n_trials": 4, "n_jobs": n_jobs}
    search = PrivateSearch(estimator, {name: uniform(0, 1)}, **settings)

    if given:
        apart = {"X_valid": X[valid], "y_valid": y[valid]}
        error = caught(functools.partial(search.fit, X[train], y[train], **apart))
    else:
        error = caught(functools.partial(search.fit, X, y))
    assert isinstance(error, kind)
    assert frames_with(error, X[valid]) == []


class Refitted(Deep):
    """Fails when it is fitted to what was found."""

    def fit(self, X, y):
        frame, self.fails = sys._getframe(), False
        while frame is not None and not self.fails:
            self.fails = frame.f_code.co_name == "_keep"
            frame = frame.f_back
        return super().fit(X, y)


def test_what_leaves_the_last_fit_leads_to_no_validation_record():
    rng = np.random.default_rng(5)
    X, y = rng.uniform(0.1, 0.9, size=(N, 3)), np.arange(N) % 2
    search = PrivateSearch(Refitted(), {"a": uniform(0, 1)}, mu=1, n_trials=8)
    error = caught(functools.partial(search.fit, X, y))
    assert isinstance(error.__cause__, ValueError)
    assert frames_with(error, X[halves(N)[1]]) == []


def test_what_the_estimator_raised_keeps_its_own_frames():
    rng = np.random.default_rng(5)
    X, y = rng.uniform(0.1, 0.9, size=(N, 3)), np.arange(N) % 2
    search = PrivateSearch(Deep(fails=True), {"a": uniform(0, 1)}, mu=1, n_trials=6)
    error = caught(lambda: search.fit(X, y))
    names, trace = [], error.__traceback__
    while trace is not None:
        names.append(trace.tb_frame.f_code.co_qualname)
        trace = trace.tb_next
    assert names[-1] == "Deep.fit"
    assert str(error) == "too few classes"
    assert isinstance(error.__cause__, ValueError)
