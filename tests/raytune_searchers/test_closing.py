"""Every way to report is closed while private code runs, or nothing of it runs."""

import importlib
import re
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
import ray
from ray import tune
from ray.train._internal import session as ray_session

from privbo_plugins.errors import PrivacyError
from raytune_searchers import _closing, report_public
from raytune_searchers._closing import TESTED, check_closed, closed_session
from raytune_searchers._trainable import ClosedReportError
from tests.inside import published_by
from tests.raytune_searchers.hosts import in_session, run_trial
from tests.raytune_searchers.runs import begun, fit, make_search, squares
from tests.raytune_searchers.test_federated import X_OF_CONFIG, Federation

WAYS = ("ray.tune", "ray.train", "ray.air.session", "ray.train._internal.session")


def elsewhere(reported):
    """A report that asks no session."""

    def report(metrics, checkpoint=None, **_):
        reported.append(dict(metrics))

    return report


def in_a_list(reported):
    """A report that only keeps what it is given, as a queue does."""
    return lambda metrics, **_: reported.append(metrics)


@pytest.mark.usefixtures("local_hosts")
@pytest.mark.parametrize("route", [elsewhere, in_a_list])
@pytest.mark.parametrize("module", WAYS)
def test_with_a_ray_that_reports_past_the_session_no_private_function_runs(
    module, route, monkeypatch
):
    search, ran, reported = begun(make_search()), [], []
    private = search.private(lambda config: ran.append(config) or squares(config))
    monkeypatch.setattr(importlib.import_module(module), "report", route(reported))
    monkeypatch.setattr("tests.raytune_searchers.hosts.sent", lambda value: value)
    trial = run_trial(search, private, "a")
    error = str(trial.error)
    assert isinstance(trial.error, PrivacyError)
    assert f"Ray {ray.__version__} " in error
    assert f"{module}.report" in error
    assert TESTED in error
    assert ran == []
    assert trial.rows == []
    assert [metrics for metrics in reported if type(metrics) is dict] == []


@pytest.mark.usefixtures("local_hosts")
@pytest.mark.parametrize("module", WAYS[:2])
def test_with_a_ray_that_reports_past_the_session_no_agents_objective_runs(module, monkeypatch):
    host, reported = Federation().host(monkeypatch), []
    monkeypatch.setattr(importlib.import_module(module), "report", elsewhere(reported))
    (error, text), _ = host.call("evaluate", 0, 0, X_OF_CONFIG)
    assert error == "PrivacyError"
    assert f"{module}.report" in text
    assert reported == []
    assert host.call("tend", None, {})[1][0].done == 0  # the objective has not run


def test_a_way_through_the_context_is_tried_where_a_ray_has_one(monkeypatch):
    with in_session("t", print), closed_session(_refused):
        check_closed(ClosedReportError)
        monkeypatch.setattr(type(tune.get_context()), "report", print, raising=False)
        with pytest.raises(PrivacyError, match=r"get_context\(\).report"):
            check_closed(ClosedReportError)


def _refused(own, *args, **kwargs):
    raise ClosedReportError


def _swallowed(own, *args, **kwargs):
    """Refuses nothing, and says nothing."""


@pytest.mark.parametrize("refuse", [_swallowed, lambda own, *args, **_: own(*args)])
def test_an_open_session_is_found_and_hears_nothing_of_it(refuse):
    heard = []
    with in_session("t", heard.append), closed_session(refuse):
        with pytest.raises(PrivacyError, match=r"ray\.tune\.report"):
            check_closed(ClosedReportError)
    assert heard == []


def test_a_warning_that_is_an_error_is_no_refusal(monkeypatch):
    def warns(metrics, **_):
        warnings.warn("old", DeprecationWarning, stacklevel=1)

    monkeypatch.setattr("ray.train.report", warns)
    with in_session("t", print), closed_session(_refused):
        with pytest.raises(PrivacyError, match=r"ray\.train\.report"):
            check_closed(ClosedReportError)


def test_a_ray_that_keeps_its_sessions_elsewhere_is_refused(monkeypatch):
    monkeypatch.delattr(ray_session, "get_session")
    with pytest.raises(PrivacyError, match=re.escape(f"Ray {ray.__version__} keeps")):
        _closing.session_of_trial()


@pytest.mark.usefixtures("local_hosts")
def test_what_other_threads_report_meanwhile_is_refused(monkeypatch):
    """Only the thread that reports as public is let through."""
    monkeypatch.setattr("tests.raytune_searchers.hosts.sent", lambda value: value)
    search = begun(make_search())
    refused = []

    def trainable(config):
        inside, done = threading.Event(), threading.Event()

        def other():
            inside.wait(10)
            try:
                tune.report({"secret": 1.0})
            except BaseException as error:
                refused.append(type(error))
            done.set()

        class Slow(dict[str, Any]):
            def items(self):
                inside.set()
                done.wait(10)
                return super().items()

        thread = threading.Thread(target=other)
        thread.start()
        report_public(Slow({"epoch": 1}))
        thread.join()
        return squares(config)

    trial = run_trial(search, search.private(trainable), "a")
    assert trial.error is None
    assert refused == [ClosedReportError]
    assert [set(row) >= {"epoch"} for row in trial.rows] == [True, True]
    assert not any("secret" in row for row in trial.rows)


def _with_each_queue(config):
    """What TuneReportCallback does where a Trainer runs in a trial, and its queue itself."""
    from ray.tune.integration.ray_train import TuneReportCallback

    with suppress(ClosedReportError):
        TuneReportCallback().after_report(None, [{"secret": 0.31415926535}], None)
        raise AssertionError
    queue = ray_session.get_session()._get_or_create_inter_actor_queue()
    queue.put({"secret": 0.31415926535})
    return squares(config)


@pytest.mark.slow
@pytest.mark.usefixtures("the_ray")
def test_the_queue_of_train_workers_is_closed(tmp_path):
    search = make_search()
    results = fit(search, search.private(_with_each_queue), tmp_path, num_samples=1)
    assert [type(error) for error in results.errors] != []
    assert "tune.report is closed" in str(results.errors[0])
    assert published_by(search) == {}
    shown = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(b"0.31415926535" in path.read_bytes() for path in shown)


def test_threads_that_private_code_leaves_behind_find_the_session_closed():
    """Tune's own thread reports the value; a session serves further trials in other threads."""
    told = []

    class Session:
        training_thread = threading.current_thread()

        def report(self, what):
            told.append(what)

    session = Session()

    def refuse(own, *_):
        raise ClosedReportError

    def left_behind():
        try:
            session.report("raw")
        except ClosedReportError:
            return "refused"
        return "reported"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("raytune_searchers._closing.session_of_trial", lambda: session)
        for _ in range(2):  # one trial after the other
            with closed_session(refuse), pytest.raises(ClosedReportError):
                session.report("meanwhile")
            session.report("released")
            with ThreadPoolExecutor(1) as pool:
                assert pool.submit(left_behind).result() == "refused"
    assert told == ["released", "released"]
