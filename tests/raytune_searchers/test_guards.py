"""What a private trainable and a private search may not do, and what happens then."""

import functools
import json
import math
import pickle
import re
import tempfile
from pathlib import Path

import pytest
from ray import cloudpickle, tune
from ray.tune.trainable.function_trainable import wrap_function

import optuna_samplers
from privbo_plugins.errors import PrivacyError, PrivacyWarning
from raytune_searchers import report_public
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


def trial_number():
    """Which trial of the experiment runs here, from 1."""
    found = re.search(r"_[0-9a-f]{8}_(\d+)_", Path(tune.get_context().get_trial_dir()).name)
    return int(found[1])


# Inside of a private trainable ----------------------------------------------------------------


def _reports_by_train(config):
    from ray import train

    train.report({"loss": SENTINEL})


def _reports_by_the_session(config):
    from ray.train._internal.session import get_session

    get_session().report({"loss": SENTINEL})


CLOSED = {
    "tune.report": lambda _: tune.report({"loss": SENTINEL}),
    "with a checkpoint": lambda _: tune.report({"loss": SENTINEL}, checkpoint=None),
    "train.report": _reports_by_train,
    "the session": _reports_by_the_session,
    "the metric as public": lambda _: report_public({"loss": SENTINEL}),
}
"""Ways to report what is not public."""


def _reports_in_silence(config):
    try:
        tune.report({"loss": SENTINEL})
    except ClosedReportError:
        return squares(config)
    raise AssertionError


def _shows_its_progress(config, shift):
    report_public({"train_loss": 0.25, "epoch": 1})
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "model").write_text("weights")
        report_public({"train_loss": 0.125}, checkpoint=tune.Checkpoint.from_directory(folder))
    return squares(config) + shift


def _caught(private, config):
    try:
        return ["returned", repr(private(config))]
    except Exception as error:
        chain = f"{error.__cause__} {error.__context__}"
        return [type(error).__name__, f"{error} {vars(error)} {chain}"]


def _reports_its_losses(config):
    tune.report({"loss": SENTINEL, "losses": squares(config).tolist()})


class Guarded:
    """An experiment of four trials: one tries all that is closed, and one insists on it."""

    def __init__(self, folder):
        self.search = search = make_search()
        closed = {name: search.private(way) for name, way in CLOSED.items()}
        private = {
            1: search.private(squares),
            2: search.private(tune.with_parameters(_shows_its_progress, shift=0.125)),
            3: search.private(_reports_in_silence),
            4: search.private(_reports_its_losses),
        }
        path = folder / "caught.json"

        def trainable(config):
            if trial_number() == 1:
                caught = {name: _caught(closed[name], config) for name in closed}
                path.write_text(json.dumps(caught))
            return private[trial_number()](config)

        self.results = fit(search, trainable, folder, num_samples=4, max_concurrent_trials=1)
        self.good = [result for result in self.results if result.error is None]
        self.caught = json.loads(path.read_text())


@pytest.fixture(scope="module")
def guarded(the_ray, tmp_path_factory):
    experiment = Guarded(tmp_path_factory.mktemp("guarded"))
    yield experiment
    experiment.search.close()


@pytest.mark.parametrize("name", CLOSED)
def test_each_way_to_report_is_closed_and_its_error_quotes_nothing(name, guarded):
    kind, text = guarded.caught[name]
    assert kind != "returned"
    assert str(SENTINEL)[:8] not in text
    if "public" not in name and name != "train.report":  # Ray itself refuses that one in a trial
        assert kind == "ClosedReportError"
        assert "report_public" in text


def test_what_was_refused_leaves_nothing_and_costs_nothing(guarded):
    published = published_by(guarded.search)
    assert len(guarded.good) == len(published) == 3
    assert_sound(guarded.search)
    for result in guarded.good:
        rows = Path(result.path, "result.json").read_text().splitlines()
        shown = [json.loads(row)["loss"] for row in rows]
        assert SENTINEL not in shown
        assert shown[-1] == published[result.metrics["trial_id"]]


def test_public_reports_reach_tune_with_their_checkpoint_and_are_noted(guarded):
    result = next(r for r in guarded.results if r.checkpoint is not None)
    frame = result.metrics_dataframe
    assert list(frame["train_loss"].dropna())[:2] == [0.25, 0.125]
    assert frame["loss"].isna().tolist()[:2] == [True, True]
    with result.checkpoint.as_directory() as folder:
        assert Path(folder, "model").read_text() == "weights"
    guarantee = guarded.search.guarantee(guarded.results)
    assert guarantee.protected
    for name in ("train_loss", "epoch", "checkpoint"):
        assert f"report_public({name})" in guarantee.details()
    assert "report_public(loss" not in guarantee.details()


def test_a_report_ends_the_trial_says_what_to_do_and_writes_no_result(guarded):
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


def test_public_reports_outside_are_refused():
    with pytest.raises(PrivacyError, match=r"inside a trainable wrapped by search\.private"):
        report_public({"train_loss": 0.5})


# Around a private trainable -------------------------------------------------------------------


@pytest.mark.usefixtures("local_hosts")
def test_one_private_trainable_in_another_is_refused(tmp_path):
    search = begun(make_search())
    inner = search.private(squares)

    def outer(config):
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
    assert trial.error is None
    assert "inside another one" in (tmp_path / "said").read_text()
    assert (tmp_path / "closed").exists()
    assert protected(search)


@pytest.mark.usefixtures("local_hosts")
def test_the_trainable_of_another_run_is_refused():
    search, stranger = begun(make_search()), make_search()
    trial = run_trial(search, stranger.private(squares), "a")
    assert "Give the Tuner the very search" in str(trial.error)
    assert "search = type(search).from_experiment(path)" in str(trial.error)
    assert ledger(search) == ([], [], [])


class Steps(tune.Trainable):
    def step(self):
        return {"loss": 0.5}


def _generates(config):
    yield 0.5


async def _awaits(config):
    return 0.5


async def _generates_later(config):
    yield 0.5


class Generating:
    def __call__(self, config):
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
def test_what_is_no_function_of_one_vector_is_refused(trainable, match):
    with pytest.raises(ValueError, match=match):
        make_search().private(trainable)


def _asks(private):
    return dict(wrap_function(private).default_resource_request({}).required_resources)


def test_resources_count_inside_and_outside_of_private():
    search, wanted = make_search(), {"CPU": 2.0, "GPU": 0.5}

    def inner(config):
        return squares(config)

    def outer(config):
        return squares(config)

    inside = search.private(tune.with_resources(inner, {"cpu": 2, "gpu": 0.5}))
    outside = tune.with_resources(search.private(outer), {"cpu": 2, "gpu": 0.5})
    assert _asks(inside) == _asks(outside) == wanted
    assert not hasattr(search.private(squares), "_resources")


# The vault ------------------------------------------------------------------------------------


def _everything_pickled(search, folder):
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
def test_a_path_in_a_variable_is_in_no_pickle(tmp_path, monkeypatch):
    monkeypatch.setenv("THE_VAULT", f"sqlite:///{tmp_path}/place-77.db")
    search = make_search(vault="env:THE_VAULT")
    (tmp_path / "ray").mkdir()
    pickled = _everything_pickled(search, tmp_path / "ray")
    assert b"env:THE_VAULT" in pickled
    assert b"place-77" not in pickled


@pytest.mark.usefixtures("local_hosts")
def test_settings_cannot_change_under_a_run(tmp_path):
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
def test_no_noise_is_said_at_once():
    search = make_search(math.inf)
    search.set_search_properties(None, None, LINE)
    with pytest.warns(PrivacyWarning, match="Nothing is protected: mu is infinite"):
        search.suggest("t")
    assert not search.guarantee().protected
    search.close()


# The other adapter's sampler ------------------------------------------------------------------


def _agent():
    from optuna_samplers import DPFTSDESampler, FederatedServer, FederationConfig

    config = FederationConfig(n_agents=1, epsilon=4.0, n_rounds=2)
    return DPFTSDESampler(FederatedServer(config).connect(0))


SAMPLERS = {
    "DPGIBO": lambda: optuna_samplers.DPGIBOSampler(mu=1),
    "LDPGPUCB": lambda: optuna_samplers.LDPGPUCBSampler(1.0, value_range=(0, 1)),
    "DPFTSDE": _agent,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_inside_optuna_search_stops_before_any_trial(name):
    from ray.tune.search.optuna import OptunaSearch

    search = OptunaSearch(sampler=SAMPLERS[name](), metric="loss", mode="min")
    assert search.set_search_properties("loss", "min", dict(LINE))
    with pytest.raises(PrivacyError, match=f"{name}Search") as raised:
        search.suggest("a")
    assert "No trial has been run" in str(raised.value)
