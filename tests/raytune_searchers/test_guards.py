"""What a private trainable and a private search may not do, and what happens then."""

from __future__ import annotations

import functools
import json
import math
import pickle
import re
import stat
import tempfile
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray", reason="Ray is not installed (the ray extra)")

from ray import cloudpickle, tune
from ray.tune.trainable.function_trainable import wrap_function

from privbo_plugins.errors import PrivacyError, PrivacyWarning, VaultError
from privbo_plugins.privacy.noise import InsecureNoise
from raytune_searchers import DPGIBOSearch, report_public
from raytune_searchers._trainable import ClosedReportError
from tests.inside import published_by
from tests.raytune_searchers.hosts import run_trial
from tests.raytune_searchers.runs import (
    LINE,
    assert_sound,
    begun,
    fit,
    ledger,
    make_search,
    protected,
    squares,
)

SENTINEL = 0.31415926535
"""A value that no message may repeat."""


def trial_number() -> int:
    """Which trial of the experiment runs here, from 1."""
    found = re.search(r"_[0-9a-f]{8}_(\d+)_", Path(tune.get_context().get_trial_dir()).name)
    assert found is not None
    return int(found[1])


# Inside of a private trainable ----------------------------------------------------------------


REFUSED: dict[str, tuple[Any, str]] = {
    "a number": (lambda y: float(y[0]), r"one value per validation record.*single number"),
    "two dimensions": (lambda y: y.reshape(2, -1), r"vector of shape.*2 dimension"),
    "a string": (lambda y: str(y.tolist()), r"must be real numbers"),
    "another length": (lambda y: np.append(y, SENTINEL), r"same 120 .*another length"),
    "empty": (lambda y: y[:0], r"non-empty vector"),
}
"""From a vector that holds the sentinel to what may not be returned, and what is said then."""


def _reports_the_metric(config: dict[str, Any]) -> Any:
    report_public({"loss": SENTINEL})


def _reports_by_train(config: dict[str, Any]) -> Any:
    from ray import train

    train.report({"loss": SENTINEL})


def _reports_by_the_session(config: dict[str, Any]) -> Any:
    from ray.train._internal.session import get_session

    get_session().report({"loss": SENTINEL})


CLOSED = {
    "tune.report": lambda _: tune.report({"loss": SENTINEL}),
    "with a checkpoint": lambda _: tune.report({"loss": SENTINEL}, checkpoint=None),
    "train.report": _reports_by_train,
    "the session": _reports_by_the_session,
}
"""Ways to report what is not public."""


def _reports_in_silence(config: dict[str, Any]) -> Any:
    try:
        tune.report({"loss": SENTINEL})
    except ClosedReportError:
        return squares(config)
    raise AssertionError


def _shows_its_progress(config: dict[str, Any], shift: float) -> Any:
    report_public({"train_loss": 0.25, "epoch": 1})
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "model").write_text("weights")
        report_public({"train_loss": 0.125}, checkpoint=tune.Checkpoint.from_directory(folder))
    return squares(config) + shift


def _has_holes(config: dict[str, Any]) -> np.ndarray:
    y = squares(config)
    y[:3] = np.nan, np.inf, -np.inf
    return y


def _returning(bend: Any) -> Any:
    def trainable(config: dict[str, Any]) -> Any:
        y = squares(config)
        y[0] = SENTINEL
        return bend(y)

    return trainable


def _caught(private: Any, config: dict[str, Any]) -> list[str]:
    try:
        return ["returned", repr(private(config))]
    except Exception as error:
        chain = f"{error.__cause__} {error.__context__}"
        return [type(error).__name__, f"{error} {vars(error)} {chain}"]


def _reports_its_losses(config: dict[str, Any]) -> Any:
    tune.report({"loss": SENTINEL, "losses": squares(config).tolist()})


class Guarded:
    """An experiment of five trials: one tries all that is refused, and one insists on it."""

    def __init__(self, folder: Path) -> None:
        self.search = search = make_search()
        good = search.private(squares)
        refused = {name: search.private(_returning(bend)) for name, (bend, _) in REFUSED.items()}
        refused |= {name: search.private(way) for name, way in CLOSED.items()}
        refused["the metric"] = search.private(_reports_the_metric)
        private = {
            1: good,
            2: search.private(_has_holes),
            3: search.private(tune.with_parameters(_shows_its_progress, shift=0.125)),
            4: search.private(_reports_in_silence),
            5: search.private(_reports_its_losses),
        }
        path = folder / "caught.json"

        def trainable(config: dict[str, Any]) -> Any:
            if trial_number() == 2:
                caught = {name: _caught(refused[name], config) for name in refused}
                path.write_text(json.dumps(caught))
            return private[trial_number()](config)

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", PrivacyWarning)
            self.results = fit(search, trainable, folder, num_samples=5, max_concurrent_trials=1)
        self.warned = [str(warning.message) for warning in caught]
        self.good = [result for result in self.results if result.error is None]
        self.caught: dict[str, list[str]] = json.loads(path.read_text())
        self.text = path.read_text()


@pytest.fixture(scope="module")
def guarded(the_ray: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    experiment = Guarded(tmp_path_factory.mktemp("guarded"))
    yield experiment
    experiment.search.close()


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_vector_of_losses_is_refused_in_clear_words(
    name: str, guarded: Guarded
) -> None:
    kind, text = guarded.caught[name]
    assert kind == ("ValueError" if name == "another length" else "NotLossesError")
    assert re.search(REFUSED[name][1], text)


@pytest.mark.parametrize("name", CLOSED)
def test_each_way_to_report_is_closed(name: str, guarded: Guarded) -> None:
    kind, text = guarded.caught[name]
    if name == "train.report":  # Ray itself refuses it inside a Tune trial
        assert kind == "ObjectiveFailedError"
    else:
        assert kind == "ClosedReportError"
        assert "report_public" in text


def test_no_refusal_quotes_a_value(guarded: Guarded) -> None:
    assert str(SENTINEL)[:8] not in guarded.text
    assert "withheld" not in "".join(
        text for name, (_, text) in guarded.caught.items() if name in REFUSED
    )


def test_what_was_refused_was_not_charged(guarded: Guarded) -> None:
    assert guarded.warned == []
    assert all(math.isfinite(result.metrics["loss"]) for result in guarded.good)
    assert_sound(guarded.search)
    published = published_by(guarded.search)
    assert len(guarded.good) == len(published) == 4
    charges, _, held = ledger(guarded.search)
    values = [charge.key for charge in charges if charge.kind == "value"]
    assert set(values) <= set(published)
    assert len(values) == len(set(values))
    assert set(held) <= set(published)


def test_a_report_that_was_refused_leaves_nothing_and_the_trial_goes_on(guarded: Guarded) -> None:
    for result in guarded.good:
        rows = Path(result.path, "result.json").read_text().splitlines()
        shown = [json.loads(row)["loss"] for row in rows]
        assert SENTINEL not in shown
        assert shown[-1] == published_by(guarded.search)[result.metrics["trial_id"]]


def test_the_metric_may_not_be_reported_as_public(guarded: Guarded) -> None:
    kind, text = guarded.caught["the metric"]
    assert kind != "returned"
    assert str(SENTINEL) not in text


def test_public_reports_reach_tune_with_their_checkpoint(guarded: Guarded) -> None:
    result = next(r for r in guarded.results if r.checkpoint is not None)
    frame = result.metrics_dataframe
    assert list(frame["train_loss"].dropna())[:2] == [0.25, 0.125]
    assert frame["loss"].isna().tolist()[:2] == [True, True]
    with result.checkpoint.as_directory() as folder:
        assert Path(folder, "model").read_text() == "weights"


def test_public_reports_are_noted_and_the_run_stays_protected(guarded: Guarded) -> None:
    guarantee = guarded.search.guarantee(guarded.results)
    assert guarantee.protected
    for name in ("train_loss", "epoch", "checkpoint"):
        assert f"report_public({name})" in str(guarantee)
    assert "report_public(loss" not in str(guarantee)


def test_a_report_ends_the_trial_says_what_to_do_and_writes_no_result(guarded: Guarded) -> None:
    (failed,) = (result for result in guarded.results if result.error is not None)
    folder = Path(failed.path)
    for said in (str(failed.error), (folder / "error.txt").read_text()):
        assert "tune.report is closed" in said
        assert "report_public" in said
    assert (folder / "result.json").read_text() == ""
    assert "loss" not in (failed.metrics or {})
    told = [charge.key for charge in ledger(guarded.search)[0] if charge.kind == "value"]
    assert len(told) == len(guarded.good)
    assert not any(key in failed.path for key in told)


def test_the_error_of_a_closed_report_survives_pickling() -> None:
    error = ClosedReportError()
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert str(cloudpickle.loads(cloudpickle.dumps(error))) == str(error)


def test_public_reports_outside_are_refused() -> None:
    with pytest.raises(PrivacyError, match=r"inside a trainable wrapped by search\.private"):
        report_public({"train_loss": 0.5})


# Around a private trainable -------------------------------------------------------------------


def _adds_a_key(private: Any, config: dict[str, Any]) -> Any:
    return {**private(config), "acc": 0.5}


def _changes_the_value(private: Any, config: dict[str, Any]) -> Any:
    return {"loss": private(config)["loss"] + 0.5}


def _reports_the_mean_before(private: Any, config: dict[str, Any]) -> Any:
    tune.report({"loss": float(squares(config).mean())})
    return private(config)


@pytest.mark.parametrize(
    ("around", "reason"),
    [
        (_adds_a_key, "under other names"),
        (_changes_the_value, "another value than was released"),
        (_reports_the_mean_before, "value"),
    ],
    ids=["another key", "another value", "another value before"],
)
@pytest.mark.usefixtures("local_hosts")
def test_code_around_that_adds_something_unprotects_the_run(around: Any, reason: str) -> None:
    search = begun(make_search())
    private = search.private(squares)
    with pytest.warns(PrivacyWarning, match=f"Nothing is protected.*{reason}"):
        trial = run_trial(search, lambda config: around(private, config), "a")
    assert trial is not None
    assert trial.error is None
    guarantee = search.guarantee()
    assert not guarantee.protected
    assert reason in str(guarantee)


@pytest.mark.usefixtures("local_hosts")
def test_one_private_trainable_in_another_is_refused(tmp_path: Path) -> None:
    search = begun(make_search())
    inner = search.private(squares)

    def outer(config: dict[str, Any]) -> Any:
        try:
            inner(config)
        except PrivacyError as error:
            (tmp_path / "said").write_text(str(error))
        try:
            tune.report({"loss": float("nan")})
        except PrivacyError:
            (tmp_path / "closed").touch()
        return squares(config)

    trial = run_trial(search, search.private(outer), "a")
    assert trial is not None
    assert trial.error is None
    assert "inside another one" in (tmp_path / "said").read_text()
    assert (tmp_path / "closed").exists()
    assert protected(search)


@pytest.mark.usefixtures("local_hosts")
def test_the_trainable_of_another_run_is_refused() -> None:
    search, stranger = begun(make_search()), make_search()
    trial = run_trial(search, stranger.private(squares), "a")
    assert trial is not None
    assert "was made by another search" in str(trial.error)
    assert "search = type(search).from_experiment(path)" in str(trial.error)
    assert ledger(search) == ([], [], [])


class Steps(tune.Trainable):  # type: ignore[misc]
    def step(self) -> dict[str, float]:
        return {"loss": 0.5}


def _generates(config: dict[str, Any]) -> Iterator[float]:
    yield 0.5


async def _awaits(config: dict[str, Any]) -> float:
    return 0.5


async def _generates_later(config: dict[str, Any]) -> AsyncIterator[float]:
    yield 0.5


class Generating:
    def __call__(self, config: dict[str, Any]) -> Iterator[float]:
        yield 0.5


@pytest.mark.parametrize(
    ("trainable", "match"),
    [
        (Steps, "a Trainable class"),
        (dict, "class"),
        (_generates, "generator"),
        (functools.partial(_generates), "generator"),
        (_awaits, "coroutine"),
        (_generates_later, "generator"),
        (Generating(), "generator"),
        ("squares", "got a str"),
        (None, "got a NoneType"),
        (0.5, "got a float"),
    ],
)
def test_what_is_no_function_of_one_vector_is_refused(trainable: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        make_search().private(trainable)


def _asks(private: Any) -> dict[str, float]:
    return dict(wrap_function(private).default_resource_request({}).required_resources)


def test_resources_count_inside_and_outside_of_private() -> None:
    search, wanted = make_search(), {"CPU": 2.0, "GPU": 0.5}

    def inner(config: dict[str, Any]) -> np.ndarray:
        return squares(config)

    def outer(config: dict[str, Any]) -> np.ndarray:
        return squares(config)

    inside = search.private(tune.with_resources(inner, {"cpu": 2, "gpu": 0.5}))
    outside = tune.with_resources(search.private(outer), {"cpu": 2, "gpu": 0.5})
    assert _asks(inside) == _asks(outside) == wanted
    assert not hasattr(search.private(squares), "_resources")


# Arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mu", [0, -1.0, math.nan, "1", None])
def test_a_budget_must_be_positive(mu: Any) -> None:
    with pytest.raises(ValueError, match="mu"):
        DPGIBOSearch(mu)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"metric": ["a", "b"]}, "one metric"),
        ({"mode": ["min", "max"]}, "one metric"),
        ({"mode": "minimise"}, "'min' or 'max', got 'minimise'"),
        ({"metric": ""}, "metric must be a name"),
        ({"metric": "training_iteration"}, "Tune fills in itself"),
        ({"metric": "config/x"}, "metric may not be"),
        ({"metric": "done/a"}, "metric may not be"),
        ({"search_space": {"x": 1}}, "at least one parameter that varies"),
        ({"points_to_evaluate": {"x": 1}}, "points_to_evaluate must be a list"),
        ({"max_concurrent": 0}, "max_concurrent"),
        ({"max_concurrent": True}, "max_concurrent"),
        ({"run_name": ""}, "run_name must be a name"),
        ({"vault": 5}, "vault must be"),
        ({"vault": "memory:other"}, "vault must be"),
        ({"vault": "vault.db"}, "vault"),
        ({"vault": "mysql://host/db"}, "vault"),
        ({"vault": "nonsense://host/db"}, "vault"),
        ({"vault": "env:NOT_SET_ANYWHERE"}, "NOT_SET_ANYWHERE"),
    ],
    ids=str,
)
def test_bad_arguments_are_refused(settings: dict[str, Any], match: str) -> None:
    with pytest.raises((ValueError, VaultError), match=match):
        make_search(**settings)


# The vault ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://user:hunter2@host/db",
        "postgresql://user:hunter2@host:5432/db",
        "postgresql://user@host/db?sslPASSWORD=hunter2",
        "postgresql://user@host/db?ssl_secret=hunter2",
    ],
)
def test_a_password_in_the_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ValueError, match="env:NAME") as raised:
        make_search(vault=url)
    assert "hunter2" not in f"{raised.value} {raised.value.__cause__} {raised.value.__context__}"


def _everything_pickled(search: Any, folder: Path) -> bytes:
    tuner = tune.Tuner(
        search.private(squares),
        param_space=LINE,
        tune_config=tune.TuneConfig(search_alg=search),
        run_config=tune.RunConfig(storage_path=str(folder), name="pickled"),
    )
    search.save(str(folder / "saved"))
    blobs = [p.read_bytes() for p in folder.rglob("*") if p.is_file()]
    assert any("tuner.pkl" in p.name for p in folder.rglob("*"))
    del tuner
    return b"".join(
        [*blobs, pickle.dumps(search), cloudpickle.dumps(search), repr(vars(search)).encode()]
    )


@pytest.mark.usefixtures("local_hosts")
def test_a_path_in_a_variable_is_in_no_pickle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_VAULT", f"sqlite:///{tmp_path}/place-77.db")
    search = make_search(vault="env:THE_VAULT")
    (tmp_path / "ray").mkdir()
    pickled = _everything_pickled(search, tmp_path / "ray")
    assert b"env:THE_VAULT" in pickled
    assert b"place-77" not in pickled


def test_relative_paths_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    search = make_search(vault="sqlite:///vault.db")
    assert f"sqlite:///{tmp_path.resolve()}/vault.db" in vars(search).values()
    assert (tmp_path / "vault.db").exists()


def test_the_vault_file_is_for_its_owner_only(tmp_path: Path) -> None:
    make_search(vault=f"sqlite:///{tmp_path}/vault.db")
    assert stat.S_IMODE((tmp_path / "vault.db").stat().st_mode) == 0o600


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in ("file", "missing"):
        with pytest.raises(VaultError, match="vault"):
            make_search(vault=f"sqlite:///{tmp_path}/{folder}/vault.db")


def test_a_name_of_a_run_needs_a_database() -> None:
    with pytest.raises(ValueError, match="run_name= names a run in a database"):
        make_search(run_name="patients")


@pytest.mark.usefixtures("local_hosts")
def test_settings_cannot_change_under_a_run(tmp_path: Path) -> None:
    where = {"vault": f"sqlite:///{tmp_path}/vault.db", "run_name": "changed"}
    first = begun(make_search(**where))
    first.history()
    for settings in ({"mu": 2.0}, {"mode": "max"}, {"metric": "error"}, {"n_steps": 3}):
        other = make_search(**where, **settings)
        with pytest.raises(ValueError, match=r"started with another .*run_name="):
            begun(other).history()
    same = begun(make_search(**where))
    assert same.guarantee() == first.guarantee()
    first.close()


@pytest.mark.usefixtures("local_hosts")
def test_no_noise_is_said_at_once() -> None:
    search = make_search(math.inf)
    search.set_search_properties(None, None, LINE)
    with pytest.warns(PrivacyWarning, match="Nothing is protected: mu is infinite"):
        search.suggest("t")
    assert not search.guarantee().protected
    search.close()


@pytest.mark.usefixtures("local_hosts")
def test_injected_noise_is_unprotected() -> None:
    search = make_search(noise=InsecureNoise(0))
    search.set_search_properties(None, None, LINE)
    with pytest.warns(PrivacyWarning, match=r"Nothing is protected: the noise came from a test"):
        search.suggest("t")
    assert not search.guarantee().protected
    assert "NOT PROTECTED" in str(search.guarantee())
    search.close()


# The other adapter's sampler ------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_the_sampler_inside_optuna_search_stops_before_any_trial() -> None:
    pytest.importorskip("optuna", reason="Optuna is not installed (the optuna extra)")
    from ray.tune.search.optuna import OptunaSearch

    from optuna_samplers import DPGIBOSampler

    search = OptunaSearch(sampler=DPGIBOSampler(mu=1), metric="loss", mode="min")
    assert search.set_search_properties("loss", "min", dict(LINE))
    with pytest.raises(PrivacyError, match="DPGIBOSearch") as raised:
        search.suggest("a")
    assert "No trial has been run" in str(raised.value)


@pytest.mark.usefixtures("local_hosts")
def test_a_password_in_a_variable_is_in_no_pickle(
    postgres_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_VAULT", postgres_database.replace("@", ":hunter2@"))
    search = begun(make_search(vault="env:THE_VAULT"))
    assert search.suggest("t") == {"x": 0.5}
    pickled = _everything_pickled(search, tmp_path)
    assert b"env:THE_VAULT" in pickled
    assert b"hunter2" not in pickled
    search.close()


@pytest.mark.parametrize(
    "query", ["sslpassword=hunter2", "PASSWORD=hunter2", "ssl_secret=hunter2"]
)
def test_secrets_in_the_query_of_a_url_are_refused(query: str) -> None:
    with pytest.raises(ValueError, match="env:NAME") as raised:
        make_search(vault=f"postgresql://user@host/db?{query}")
    assert "hunter2" not in str(raised.value)
