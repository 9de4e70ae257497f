"""One Ray for the whole session, as small and quiet as it gets."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from tests.inside import end_forgotten_hosts

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "0"

INIT = {
    "num_cpus": 2,
    "num_gpus": 1,  # a number in Ray's books; no machine of ours has one
    "include_dashboard": False,
    "log_to_driver": False,
    "logging_level": "ERROR",
    "object_store_memory": 100_000_000,
}
"""Settings of every Ray that tests start, also in subprocesses."""


def pytest_collection_modifyitems(items):
    """Ray's own warnings are no errors of ours."""
    here = str(Path(__file__).parent)
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:ray.*"))
            item.add_marker(pytest.mark.filterwarnings("ignore:.*:ResourceWarning"))


@pytest.fixture(scope="session")
def ray_folder():
    """Where the session's Ray keeps its files; short, because sockets lie in it."""
    folder = Path(tempfile.mkdtemp(prefix="ry", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def the_ray(ray_folder):
    """A running Ray."""
    ray = pytest.importorskip("ray", reason="Ray is not installed (the ray extra)")
    ray.init(_temp_dir=str(ray_folder), **INIT)
    yield ray
    ray.shutdown()


@pytest.fixture
def killed(the_ray, tmp_path, monkeypatch):
    """Runs an experiment until it kills its driver; the folder that it leaves, to go on from."""
    from tests.raytune_searchers.scenes import run_until_killed

    monkeypatch.setenv("TUNE_GLOBAL_CHECKPOINT_S", "0")  # all is saved that trials did before

    def run(experiment):
        run_until_killed(experiment, tmp_path)
        return tmp_path / "run"

    return run


@pytest.fixture(autouse=True)
def no_vault_outlives_its_test(request):
    """A process keeps vaults in memory to its end, and this one runs hundreds of tests."""
    yield
    if "the_ray" in request.fixturenames:
        end_forgotten_hosts()


@pytest.fixture(autouse=True)
def no_ray_unless_asked_for(request):
    """A test that asks for no Ray sees none, whatever ran in its process before."""
    if {"the_ray", "local_hosts"} & set(request.fixturenames):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        if "ray" in sys.modules:
            patch.setattr("ray.is_initialized", lambda: False)
        yield
