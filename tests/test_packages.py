"""What is built from this checkout is what somebody needs, and nothing else."""

import json
import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes

import optuna
import pytest

from tests.packages import RESULTS, ROOT, SMOKE, built, checked

PACKAGES = ("optuna_samplers", "privbo_plugins", "raytune_searchers", "sklearn_search")
HUB = sorted(path.parent for path in (ROOT / "package").glob("samplers/*/__init__.py"))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return built(tmp_path_factory.mktemp("built"))


def metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return message_from_bytes(archive.read(name))


@pytest.mark.slow
def test_an_index_would_take_them(files):
    assert checked(*files).count("PASSED") == 2


@pytest.mark.slow
def test_the_wheel_holds_the_four_packages_and_what_they_read(files):
    with zipfile.ZipFile(files[0]) as archive:
        names = set(archive.namelist())
    packed = {name for name in names if ".dist-info/" not in name}
    wanted = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == wanted
    assert {f"{package}/py.typed" for package in PACKAGES} <= packed
    assert "privbo_plugins/certificate.schema.json" in packed


@pytest.mark.slow
def test_the_sdist_has_tests_docs_and_examples(files):
    with tarfile.open(files[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for name in ("README.md", "CITATION.cff", "Makefile", "docs/privacy.md", "tests/packages.py"):
        assert name in names
    assert not any(name.startswith((".venv", "build/", ".ci/")) for name in names)


@pytest.mark.slow
def test_an_index_shows_the_readme_without_links_that_lead_nowhere(files):
    told = metadata(files[0])
    page = str(told.get_payload())
    assert re.findall(r"\]\((?!https?:|#)[^)]*\)", page) == []
    assert told["Project-URL"] is None  # nobody has opened one
    linked = re.findall(r"\]\((?!https?:|#)([^)#]+)", (ROOT / "README.md").read_text())
    assert len(linked) > 10
    assert [name for name in linked if not (ROOT / name).exists()] == []


@pytest.mark.slow
def test_every_extra_of_the_wheel_is_tried(files):
    offered = set(metadata(files[0]).get_all("Provides-Extra", []))
    assert set(SMOKE) - {""} == offered - {"demo", "dev", "docs", "examples", "mutants", "torch"}


def test_the_table_of_sizes_is_what_was_measured():
    page = (ROOT / "docs" / "install.md").read_text()
    rows = re.findall(r"^\| (?:`(\w+)`|\(none\)) \| .* \| (\d+) \| (\d+) \|$", page, flags=re.M)
    measured = json.loads(RESULTS.read_text())
    assert {row["extra"] for row in measured} == set(SMOKE)
    assert rows == [(row["extra"], str(row["packages"]), str(row["mb"])) for row in measured]


def test_the_citation_is_of_this_version():
    import privbo_plugins

    cited = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {privbo_plugins.__version__}\n" in cited
    assert cited.startswith("cff-version: 1.2.0\n")


# What users' type checkers see ------------------------------------------------------------------

_USER = """
import numpy as np
import optuna
from optuna_samplers import DPGIBOSampler, private_objective
from raytune_searchers import DUETSSearch
from privbo_plugins.federation import Alone
from privbo_plugins.privacy.guarantee import Guarantee


def losses(trial: optuna.Trial) -> np.ndarray:
    return np.zeros(3) + trial.suggest_float("x", 0, 1)


sampler = DPGIBOSampler(1, seed=0, vault=None)
other = DPGIBOSampler(epsilon=4.0, delta=1e-5)
study = optuna.create_study(sampler=sampler)
study.optimize(sampler.private(losses))
study.optimize(private_objective(losses, mu=1, n_trials=3))
guarantee: Guarantee = sampler.guarantee(study)
best: dict[str, object] = sampler.recommend(study)
DPGIBOSampler(1, clip_norm=3)  # Unexpected keyword argument
DPGIBOSampler(mu="1")  # incompatible type
sampler.recommend()  # Missing positional argument
DUETSSearch(4, first_epoch="two")  # incompatible type
Alone.guarantees  # has no attribute
from optuna_samplers import DPGIBOSampel  # has no attribute
"""


@pytest.mark.soak
def test_a_user_who_checks_types_strictly_sees_ours(tmp_path):
    code = tmp_path / "user.py"
    code.write_text(_USER)
    command = [
        sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary",
        "--disable-error-code=type-arg", "--cache-dir", str(tmp_path / "cache"), str(code),
    ]  # fmt: skip
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    told = {
        int(line.split(":")[1]): line
        for line in said.splitlines()
        if "user.py:" in line and ": error: " in line
    }
    wrong = {n: line for n, line in enumerate(_USER.splitlines(), 1) if "  # " in line}
    assert told.keys() == wrong.keys(), said[-2000:]
    for number, line in wrong.items():
        assert line.partition("  # ")[2] in told[number]


# OptunaHub --------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", HUB, ids=lambda path: path.name)
def test_a_package_for_the_hub_has_what_the_hub_asks_for(folder):
    """Front matter, as the registry's own check reads it, and the files of its template."""
    front = (folder / "README.md").read_text().split("---\n")[1]
    fields = dict(line.split(": ", 1) for line in front.strip().splitlines())
    assert set(fields) == {"author", "title", "description", "tags", "optuna_versions", "license"}
    assert fields["license"] == "MIT License"
    assert fields["tags"].startswith("[sampler, ")
    assert all(isinstance(v, str) for v in json.loads(fields["optuna_versions"]))
    assert "MIT License" in (folder / "LICENSE").read_text()
    page = (folder / "README.md").read_text()
    for heading in ("Abstract", "Class or Function Names", "Installation", "Example"):
        assert f"\n## {heading}\n" in page
    code = (folder / "example.py").read_text().split('"""\n\n', 1)[1]
    assert f"```python\n{code}```" in page


@pytest.mark.parametrize("folder", HUB, ids=lambda path: path.name)
def test_a_package_for_the_hub_loads_and_its_example_runs(folder, capsys, monkeypatch):
    hub = pytest.importorskip("optunahub", reason="optunahub is not installed")
    monkeypatch.setattr(
        hub, "load_module", lambda name: hub.load_local_module(name, registry_root=str(HUB_ROOT))
    )
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        exec(compile((folder / "example.py").read_text(), "example.py", "exec"), {})
    finally:
        optuna.logging.set_verbosity(verbosity)
    assert "mu=1" in (said := capsys.readouterr().out) or "epsilon" in said


HUB_ROOT = ROOT / "package"


def test_no_file_that_is_ignored_is_kept_in_the_repository():
    """Such a file came by accident, and holds what the machine that made it is called."""
    command = ["git", "ls-files", "--cached", "--ignored", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("this is no checkout of git's")
    assert listed.stdout == ""
