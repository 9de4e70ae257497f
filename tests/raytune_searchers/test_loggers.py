"""What TensorBoard and MLflow show of an experiment: docs/optuna.md, read from their files."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray is not installed (the ray extra)")

from tests.raytune_searchers.runs import RECORDS, fit, make_search, squares

pytestmark = pytest.mark.slow


@dataclass
class Logged:
    folder: Path
    store: str
    results: Any


@pytest.fixture(scope="module")
def logged(the_ray: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logged]:
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed (the dev extra)")
    from ray.air.integrations.mlflow import MLflowLoggerCallback

    folder = tmp_path_factory.mktemp("logged")
    store = f"file://{folder}/mlruns"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        before = mlflow.get_tracking_uri()
        logger = MLflowLoggerCallback(tracking_uri=store, experiment_name="run")
        search = make_search()
        results = fit(search, search.private(squares), folder, callbacks=[logger])
        yield Logged(folder, store, results)
        mlflow.set_tracking_uri(before)


def scalars(file: Path) -> dict[str, list[float]]:
    """Scalars of an event file by tag: frames of (length, checksum, event, checksum)."""
    events = pytest.importorskip("tensorboardX.proto.event_pb2", reason="Ray brings it along")
    data, found = file.read_bytes(), dict[str, list[float]]()
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        event = events.Event.FromString(data[12 : 12 + size])
        for value in event.status.value:
            found.setdefault(value.tag, []).append(value.simple_value)
        data = data[16 + size :]
    return found


def exact(result: Any) -> float:
    return float(((result.config["x"] - RECORDS) ** 2).mean())


@pytest.mark.soak
def test_tensorboard_shows_estimate_and_draw_of_each_trial_and_no_exact_mean(
    logged: Logged,
) -> None:
    files = list((logged.folder / "run").rglob("events.out.tfevents*"))
    assert len(files) == len(logged.results)
    for result in logged.results:
        (file,) = Path(result.path).glob("events.out.tfevents*")
        shown = scalars(file)
        assert shown["ray/tune/loss"] == pytest.approx([result.metrics["loss"]], rel=1e-6)
        drawn = shown["ray/tune/privbo_release"]
        assert drawn == pytest.approx([result.metrics["privbo_release"]], rel=1e-6)
        true = exact(result)
        numbers = [v for tag, values in shown.items() if "/time" not in tag for v in values]
        assert not [v for v in numbers if v == pytest.approx(true, rel=1e-6)]


@pytest.mark.soak
def test_mlflow_shows_the_same_and_its_best_is_tunes_best(logged: Logged) -> None:
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri(logged.store)
    runs = mlflow.search_runs(experiment_names=["run"], order_by=["metrics.loss"])
    best = logged.results.get_best_result("loss", "min")
    assert len(runs) == len(logged.results)
    assert runs["metrics.loss"][0] == best.metrics["loss"]
    assert runs["metrics.privbo_release"][0] == best.metrics["privbo_release"]
    assert float(runs["params.x"][0]) == best.config["x"]
    told = {value for value in runs.to_numpy().ravel().tolist() if isinstance(value, float)}
    assert not told & {exact(result) for result in logged.results}


@pytest.mark.soak
def test_neither_shows_recommendation_or_guarantee(logged: Logged) -> None:
    files = [*(logged.folder / "mlruns").rglob("*"), *logged.folder.rglob("*tfevents*")]
    shown = b"".join(file.read_bytes() for file in files if file.is_file())
    assert b"privbo_release" in shown
    assert b"Gaussian differential privacy" not in shown
    assert b"ecommend" not in shown
