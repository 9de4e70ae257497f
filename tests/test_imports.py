"""What an import costs: which modules it loads, counted in an interpreter of its own."""

import ast
import functools
import importlib
import json
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

HEAVY = (
    "dp_accounting", "opendp", "sqlalchemy", "scipy.stats", "scipy.optimize", "scipy.linalg",
    "plotly", "matplotlib", "sklearn", "jinja2", "click",
)  # fmt: skip
"""What no host imports by itself, and nobody needs before a study runs."""

SAMPLERS = {
    "DPGIBOSampler": "dp_gibo", "LDPGPUCBSampler": "ldp_gp_ucb",
    "LDPTGPUCBSampler": "ldp_gp_ucb", "LDPATAGPUCBSampler": "ldp_gp_ucb",
    "LDPMoMAGPUCBSampler": "ldp_gp_ucb", "DPFTSDESampler": "dp_fts_de",
    "POGPUCBSampler": "po_gp_ucb", "DUETSSampler": "duets", "PrivateSampler": "",
    "ldp_objective": "", "private_objective": "released_means", "run_federated": "",
    "answer_trials": "po_gp_ucb", "FederationConfig": "dp_fts_de",
    "FederatedServer": "dp_fts_de",
}  # fmt: skip
"""Public names, and the one paper that each may import."""

SEARCHES = {
    "DPGIBOSearch": "dp_gibo", "LDPGPUCBSearch": "ldp_gp_ucb", "LDPTGPUCBSearch": "ldp_gp_ucb",
    "LDPATAGPUCBSearch": "ldp_gp_ucb", "LDPMoMAGPUCBSearch": "ldp_gp_ucb",
    "DPFTSDESearch": "dp_fts_de", "POGPUCBSearch": "po_gp_ucb", "DUETSSearch": "duets",
    "PrivateSearch": "", "ldp_trainable": "", "private_trainable": "released_means",
    "report_public": "", "answering": "", "agent_trials": "dp_fts_de",
    "FederationConfig": "dp_fts_de",
}  # fmt: skip

LAZY = (
    "optuna_samplers", "raytune_searchers", "sklearn_search", "privbo_plugins",
    "privbo_plugins.federation",
)  # fmt: skip
"""Packages whose names are imported on first use."""

HOSTS = ("losses", "rewards", "server", "curator")

_PROBE = """
import json, sys
from importlib import import_module
packages, names = sys.argv[1].split(), sys.argv[2:]
found, (package, *_) = {}, packages
for name in packages:
    import_module(name)
found[""] = sorted(sys.modules)
for name in names:
    for loaded in [m for m in sys.modules if m.split(".")[0] in OURS]:
        del sys.modules[loaded]
    getattr(import_module(package), name)
    found[name] = sorted(sys.modules)
print(json.dumps(found))
"""

OURS = ("optuna_samplers", "raytune_searchers", "sklearn_search", "privbo_plugins")


@functools.cache
def loaded_by(*packages, names=()):
    """Modules loaded by imports (""), and after each of the first package's names was asked for.

    Our own modules are forgotten in between; others are not, so what one name loads counts
    against all that come after it.
    """
    probe = f"OURS = {OURS!r}\n{_PROBE}"
    done = subprocess.run(
        [sys.executable, "-c", probe, " ".join(packages), *names],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    return json.loads(done.stdout)


def papers(modules):
    """Folders of :mod:`privbo_plugins.algorithms` that were imported."""
    parts = [m.split(".") for m in modules if m.startswith("privbo_plugins.algorithms.")]
    folders = {p.name for p in (ROOT / "privbo_plugins" / "algorithms").iterdir() if p.is_dir()}
    return {part[2] for part in parts} & folders


def check_names(package, named):
    """Nothing heavy after the import or any name, and no other paper's algorithm."""
    found = loaded_by(package, names=tuple(named))
    ours = {m for m in found[""] if m.startswith("privbo_plugins.")}
    assert ours == {"privbo_plugins.lazy"}
    for name, modules in found.items():
        assert not set(HEAVY) & set(modules), name
        assert papers(modules) <= {named.get(name, "")}, name


def test_naming_a_sampler_loads_its_own_algorithm_and_nothing_heavy():
    pytest.importorskip("optuna", reason="Optuna is not installed (the optuna extra)")
    check_names("optuna_samplers", SAMPLERS)


@pytest.mark.slow
def test_naming_a_search_loads_its_own_algorithm_and_nothing_heavy():
    pytest.importorskip("ray", reason="Ray is not installed (the ray extra)")
    check_names("raytune_searchers", SEARCHES)


def test_the_search_for_scikit_learn_loads_no_host_before_it_fits():
    pytest.importorskip("sklearn", reason="scikit-learn is not installed (the sklearn extra)")
    found = loaded_by("sklearn_search", names=("PrivateSearch",))
    assert {m for m in found[""] if m.startswith("privbo_plugins.")} == {"privbo_plugins.lazy"}
    assert not set(HEAVY) & set(found[""])
    loaded = set(found["PrivateSearch"])
    assert not {"optuna", "ray", "opendp", "dp_accounting", "sqlalchemy", "plotly"} & loaded
    assert papers(list(loaded)) == {"dp_gibo", "released_means"}


@pytest.mark.slow
def test_the_process_of_a_vault_starts_without_ray_tune():
    """An experiment waits for it, and importing Tune takes longer than all else that it needs."""
    pytest.importorskip("ray", reason="Ray is not installed (the ray extra)")
    hosts = [f"raytune_searchers.hosts.{host}" for host in HOSTS]
    modules = loaded_by(*hosts)[""]
    assert set(hosts) <= set(modules)
    assert not {"ray.tune", "ray.train", "pandas"} & set(modules)


@pytest.mark.slow
def test_a_trial_on_ray_that_returns_losses_imports_no_scores():
    pytest.importorskip("ray", reason="Ray is not installed (the ray extra)")
    modules = loaded_by("raytune_searchers._trainable")[""]
    assert not {"privbo_plugins.scores", "privbo_plugins.losses"} & set(modules)


def test_naming_what_the_engine_offers_loads_nothing_heavy():
    names = tuple(import_module("privbo_plugins").__all__)
    found = loaded_by("privbo_plugins", names=names)
    assert "Curator" in names
    assert {m for m in found[""] if m.startswith("privbo_plugins.")} == {"privbo_plugins.lazy"}
    for name, modules in found.items():
        assert not {*HEAVY, "optuna", "ray"} & set(modules), name


def test_the_engine_alone_loads_no_host():
    modules = loaded_by("privbo_plugins.sessions.records")[""]
    assert not {"optuna", "ray", "opendp", "sqlalchemy", "scipy.stats"} & set(modules)


def test_control_the_probe_sees_what_is_heavy():
    assert "sqlalchemy" in loaded_by("privbo_plugins.store.tables")[""]
    assert papers(loaded_by("privbo_plugins.algorithms.duets")[""]) == {"duets"}


def test_the_registry_loads_an_algorithm_when_it_is_asked_for_it_and_no_other():
    assert not papers(loaded_by("privbo_plugins.algorithms.registry")[""])
    engine = loaded_by("privbo_plugins.sessions.records")[""]
    assert "privbo_plugins.algorithms.registry" in engine
    assert not papers(engine)


@pytest.mark.parametrize("named", [SAMPLERS, SEARCHES], ids=["samplers", "searches"])
def test_the_tables_of_this_file_hold_every_public_name(named):
    package = "optuna_samplers" if named is SAMPLERS else "raytune_searchers"
    assert set(named) == set(import_module(package).__all__)


def test_the_search_for_scikit_learn_is_its_only_public_name():
    assert import_module("sklearn_search").__all__ == ["PrivateSearch"]


def listed(package):
    """A package's names by home: for editors, and for the interpreter."""
    spec = find_spec(package)
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text())
    branch = next(node for node in tree.body if isinstance(node, ast.If))
    editors = {
        str(alias.asname): str(node.module)  # without an alias editors take it for private
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    call = next(node for node in ast.walk(branch) if isinstance(node, ast.Call))
    homes = ast.literal_eval(call.args[1])
    interpreter = {name: home for home, names in homes.items() for name in names}
    return editors, interpreter


@pytest.mark.parametrize("package", LAZY)
def test_editors_and_the_interpreter_are_told_the_same_names(package):
    pytest.importorskip(package.split("_")[0].replace("raytune", "ray").replace("privbo", "numpy"))
    editors, interpreter = listed(package)
    assert editors == interpreter
    module = importlib.import_module(package)
    assert module.__all__ == sorted(editors)
    assert set(editors) <= set(dir(module))
    for name in editors:
        assert getattr(module, name) is getattr(import_module(editors[name]), name)


def test_a_name_that_a_package_does_not_have_is_an_attribute_error():
    module = import_module("privbo_plugins.federation")
    with pytest.raises(AttributeError, match=r"'privbo_plugins.federation' has no .*'Serer'"):
        _ = module.Serer
    with pytest.raises(ImportError, match="Serer"):
        exec("from privbo_plugins.federation import Serer")
