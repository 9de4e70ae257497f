"""What a person sees who opens optuna-dashboard on the study that the demo writes.

``SCREENSHOTS=1`` runs the demo in full and keeps the pictures of docs/optuna.md.
"""

import os
import re
import warnings

import numpy as np
import optuna
import pytest

from optuna_samplers import DPGIBOSampler
from tests.boards import browser, served
from tests.examples.test_examples import run

pytestmark = pytest.mark.slow

RECORDS = np.random.default_rng(0).normal(0.7, 0.1, size=400)

PICTURES = {
    "privbo-released-values": "Released values",
    "privbo-path-of-the-recommendation": "Path of the recommendation",
    "privbo-budget-spent": "Budget spent",
}


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    pytest.importorskip("optuna_dashboard", reason="it is not installed (dev extra)")
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def storage(chromium, tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    few = () if "SCREENSHOTS" in os.environ else ("--trials", "24")
    run(folder, "examples.demo", *few, needs=("optuna", "sklearn", "matplotlib"))
    return f"sqlite:///{folder}/demo.db"


@pytest.fixture(scope="module")
def study(storage):
    return optuna.load_study(study_name="demo", storage=storage)


@pytest.fixture(scope="module")
def address(storage):
    with served(storage) as found:
        yield f"{found}/studies/1"


def recommended(chromium, address, study):
    """The note, and the trial that it says was run at the recommended point."""
    text = chromium.text(f"{address}/note", "What the values are", "In full")
    return text, study.trials[int(re.search(r"Trial (\d+) was run there", text)[1])]


def test_the_number_called_best_is_an_estimate_and_not_the_least_draw(chromium, address, study):
    best = study.best_trial
    text = chromium.text(address, "Best Trial", repr(best.value))
    draws = [trial.user_attrs["privbo:release"] for trial in study.trials]
    shown = text[text.index("Best Trial") :]
    assert f"number={best.number}" in shown
    assert repr(min(draws)) not in shown
    assert best.value != min(draws)  # by chance it may be smaller
    assert best.value >= 0  # an error rate


def test_pictures_with_error_bars_path_and_budget_are_drawn(chromium, address):
    chromium.text(address, *PICTURES.values())
    assert {f"user-defined-plot:{name}" for name in PICTURES} <= chromium.ids()
    chromium.picture("dashboard-pictures", "[id^='user-defined-plot:']")


def test_the_note_tells_values_recommendation_and_guarantee_in_this_order(
    chromium, address, study
):
    text, told = recommended(chromium, address, study)
    pieces = [
        "What the values are", "Recommendation", f"C\t{told.params['C']:.4g}",
        f"gamma\t{told.params['gamma']:.4g}", "95 % interval",
        f"Trial {told.number} was run there", "Guarantee", "Not protected: training records",
        "all 900 validation records but one", "at most mu = 1, whatever", "privbo:guarantee",
    ]  # fmt: skip
    places = [text.index(piece) for piece in pieces]
    assert places == sorted(places)
    assert "| ---" not in text  # a table, not its source
    chromium.picture("dashboard-note")


def test_the_recommended_trial_and_no_other_is_marked(chromium, address, study):
    own = recommended(chromium, address, study)[1].number
    chromium.text(f"{address}/trials?numbers={own}", "Recommended by the releases")
    other = 0 if own else 1
    shown = chromium.text(f"{address}/trials?numbers={other}", f"(trial_id={other + 1})")
    assert "Recommended" not in shown


# Other dashboards: docs/optuna.md -----------------------------------------------------------


@pytest.fixture
def run_in_mlflow(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed (the dev extra)")
    integration = pytest.importorskip("optuna_integration", reason="it is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    before = mlflow.get_tracking_uri()
    with warnings.catch_warnings(action="ignore", category=FutureWarning):
        callback = integration.MLflowCallback(f"file://{tmp_path}/mlruns", metric_name="loss")
    sampler = DPGIBOSampler(mu=1.0, n_trials=20, seed=0)
    study = optuna.create_study(study_name="s", sampler=sampler)
    study.optimize(sampler.private(losses), n_trials=5, callbacks=[callback, sampler.publish])
    yield study, mlflow.search_runs(experiment_names=["s"], order_by=["metrics.loss"])
    mlflow.set_tracking_uri(before)


def losses(trial):
    return (trial.suggest_float("x", 0, 1) - RECORDS) ** 2


def test_mlflow_shows_estimate_and_draw_and_its_best_is_the_studys(run_in_mlflow):
    study, runs = run_in_mlflow
    assert runs["metrics.loss"][0] == study.best_value
    assert float(runs["tags.privbo:release"][0]) == study.best_trial.user_attrs["privbo:release"]
    told = runs.to_csv()
    assert not [t for t in study.trials if repr(((t.params["x"] - RECORDS) ** 2).mean()) in told]
    assert "differential privacy" not in told
    assert "ecommend" not in told
