"""For the whole suite: temporary files in memory, a throw-away PostgreSQL cluster, and hosts."""

import fcntl
import functools
import gc
import getpass
import glob
import json
import logging
import math
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import uuid
from contextlib import contextmanager
from pathlib import Path

import hypothesis
import pytest

USER = "tests"

ON_RAY = "raytune_searchers"

TOGETHER = {
    f"{ON_RAY}/test_{name}.py": "Ray"
    for name in (
        "closing", "federated", "guards", "local_ray", "main_job", "private_trainable",
        "sklearn_search", "tune_matrix",
    )
}  # fmt: skip
"""Files whose tests use one Ray in every run: starting it takes as long as many of them."""

ROOT = Path(__file__).parents[1]

MEASURED = ROOT / "benchmarks" / "results" / "test_suite.json"
"""What each file costs, as ``make profile`` has measured it: the longest are handed out first."""

SLOW = 6.0
"""Seconds from which on ``make test-fast`` leaves a file out."""

SCATTERED = (
    "examples/test_examples.py", "tests/test_pages.py::test_a_page_does",
    "contracts/test_optuna_adapter.py", "contracts/test_optuna_matrix.py",
    "engine/test_audit.py", "engine/test_local_mechanisms.py", "contracts/test_algorithm.py",
    "contracts/test_faults_crash.py",
)  # fmt: skip
"""Where tests share nothing, and are handed out one by one."""

OF_EXTRAS = ("optuna", "ray", "sklearn")
"""Hosts: files of tests that import one are skipped where it is not installed."""

MEMORY, ROOM = Path("/dev/shm"), 4 * 2**30

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy: processes share the cores


def pytest_configure(config):
    """Lays ``tmp_path`` into memory where there is room: no commit of SQLite waits for a disk.

    Hypothesis draws the same examples in every run, and more and new ones in soak; it looks at no
    clock.
    """
    always = "not soak" in config.option.markexpr
    hypothesis.settings.register_profile(
        "tests",
        deadline=None,
        derandomize=always,
        max_examples=50 if always else 200,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile("tests")
    if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Skips a file that imports a package of an extra which is not installed here."""
    real = collector.collect

    def collect():
        try:
            return list(real())
        except (ImportError, collector.CollectError) as error:
            cause = error if isinstance(error, ImportError) else error.__cause__
            package = (getattr(cause, "name", None) or "").partition(".")[0]
            if package not in OF_EXTRAS:
                raise
            pytest.skip(f"{package} is not installed", allow_module_level=True)

    collector.collect = collect
    return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Hands out files, not tests: what a module's tests share is made once, and Rays are few.

    xdist's own ``--dist loadgroup`` does nothing under pytest 9: no mark reaches a test's id.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return piece_of(nodeid)

    return ByFile(config, log)


def piece_of(nodeid):
    """What one worker runs in one go: tests that use one Ray, a file, or a single test."""
    file, _, test = nodeid.partition("::")
    short = _short(Path(file))
    return nodeid if f"{short}::{test}".startswith(SCATTERED) else TOGETHER.get(short, short)


def pytest_itemcollected(item):
    """Marks what is slow by its file."""
    if _seconds().get(_place(item), 0.0) >= SLOW:
        item.add_marker(pytest.mark.slow)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """The longest pieces first: the run ends when the last piece does.

    What has not been measured yet counts as long.
    """
    costs = {}
    for place, seconds in _seconds().items():
        piece = TOGETHER.get(_short(Path(place)), place)
        costs[piece] = costs.get(piece, 0.0) + seconds

    def cost(item):
        return -costs.get(TOGETHER.get(_short(item.path), _place(item)), math.inf)

    items.sort(key=cost)
    for item in items:
        if item.get_closest_marker("soak") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(3600))  # on a machine that does other things too


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Leaves what collecting makes, which lives to the end, out of every later search for garbage.

    Modules and ten thousand tests would be walked through each time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@functools.cache
def _seconds():
    """Seconds of each file."""
    rows = json.loads(MEASURED.read_text()) if MEASURED.exists() else {}
    return {file: float(row["seconds"]) for file, row in rows.items()}


def _place(item):
    return item.nodeid.partition("::")[0]


def _short(path):
    return f"{path.parent.name}/{path.name}"


def _reset_loggers():
    """Not as MLflow leaves them, once some test imports it: printing, and telling nobody else."""
    for name in ("sqlalchemy.engine", "alembic"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.setLevel(logging.NOTSET)
        logger.propagate = True


@pytest.fixture(scope="module", autouse=True)
def loggers_as_sqlalchemy_made_them():
    """Before whatever else a module prepares."""
    _reset_loggers()


@pytest.fixture(autouse=True)
def loggers_as_sqlalchemy_made_them_again(loggers_as_sqlalchemy_made_them):
    """Also if the test before was of the same module."""
    _reset_loggers()


@pytest.fixture(scope="session", autouse=True)
def migrations_are_read_once():
    """The newest schema that Optuna's files know; it reads them all whenever a study is opened."""
    if "optuna" not in sys.modules:
        yield
        return
    import optuna

    storage = optuna.storages.RDBStorage("sqlite:///:memory:")
    newest, manager = storage.get_head_version(), getattr(storage, "_version_manager", None)
    storage.remove_session()
    storage.engine.dispose()
    with pytest.MonkeyPatch.context() as patch:
        if manager is not None:
            patch.setattr(type(manager), "get_head_version", lambda _: newest)
        yield


def _binaries():
    """The folder that holds initdb and pg_ctl, newest version first."""
    on_path = shutil.which("initdb")
    folders = [str(Path(on_path).resolve().parent)] if on_path else []
    folders += sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True)
    return next((Path(f) for f in folders if (Path(f) / "pg_ctl").exists()), None)


def _as_user():
    """A command prefix and a user name: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return [], getpass.getuser()
    import pwd

    names = {entry.pw_name for entry in pwd.getpwall()}
    user = next((name for name in ("postgres", "nobody") if name in names), None)
    if user is None or shutil.which("runuser") is None:
        return None
    return ["runuser", "-u", user, "--"], user


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _run(*command):
    done = subprocess.run(
        [str(part) for part in command], cwd="/tmp", stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=120,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"PostgreSQL does not start here: {done.stdout[-300:]}")


class Cluster:
    """One throw-away cluster for all processes of a test run; the last one out stops it.

    Users stand in a folder, a file each that its process keeps locked as long as it lives: one
    that was killed counts for nothing.

    Args:
        shared: A folder that all processes of the run know.
    """

    def __init__(self, shared):
        self._users, self._known = shared / "postgres-users", shared / "postgres.json"
        self._users.mkdir(exist_ok=True)
        self._lock = shared / "postgres.lock"

    def __enter__(self):
        with locked(self._lock):
            if not self._known.exists():
                self._known.write_text(json.dumps(_start_cluster()))
            self._me = (self._users / uuid.uuid4().hex).open("w")
            fcntl.flock(self._me, fcntl.LOCK_EX)
            return str(json.loads(self._known.read_text())["url"])

    def __exit__(self, *_):
        with locked(self._lock):
            Path(self._me.name).unlink()
            self._me.close()
            if not any(_in_use(path) for path in self._users.iterdir()):
                _stop_cluster(**json.loads(self._known.read_text()))
                self._known.unlink()


@contextmanager
def locked(path):
    """Keeps the run's other processes out."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _in_use(path):
    """Whether the process that holds this file is alive."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _start_cluster():
    """What :func:`_stop_cluster` needs; skips the test where there can be no cluster."""
    binaries, prefix_user = _binaries(), _as_user()
    if binaries is None:
        pytest.skip("no PostgreSQL server binaries (initdb, pg_ctl) on this machine")
    if prefix_user is None:
        pytest.skip("PostgreSQL does not run as root, and there is no other user to run it")
    prefix, user = prefix_user
    root = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    if prefix:
        shutil.chown(root, user)
    data, port = root / "data", free_port()
    options = (
        f"-c listen_addresses=127.0.0.1 -p {port} -c unix_socket_directories={root} "
        "-c fsync=off -c full_page_writes=off -c synchronous_commit=off -c max_connections=200 "
        "-c shared_buffers=16MB"
    )
    url = f"postgresql+psycopg://{USER}@127.0.0.1:{port}/postgres"
    found = {"url": url, "binaries": str(binaries), "root": str(root)}
    try:
        _run(*prefix, binaries / "initdb", "-D", data, "-U", USER, "-A", "trust", "-E", "UTF8",
             "--no-sync", "--no-locale")  # fmt: skip
        _run(*prefix, binaries / "pg_ctl", "-D", data, "-o", options, "-l", root / "log",
             "-w", "-t", "60", "start")  # fmt: skip
    except BaseException:
        _stop_cluster(**found)
        raise
    return found


def _stop_cluster(url, binaries, root):
    prefix, _ = _as_user() or ([], "")
    subprocess.run(
        [*prefix, f"{binaries}/pg_ctl", "-D", f"{root}/data", "-m", "immediate", "stop"],
        cwd="/tmp", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory):
    """URL of an existing, empty database in a cluster that lives as long as the test run."""
    pytest.importorskip("psycopg", reason="the PostgreSQL driver psycopg is not installed")
    base = tmp_path_factory.getbasetemp()
    in_worker = "PYTEST_XDIST_WORKER" in os.environ
    with Cluster(base.parent if in_worker else base) as url:
        yield url


@contextmanager
def databases(url, *names):
    """URLs of new databases in the cluster of another one, which are gone in the end."""
    import psycopg

    admin, base = url.replace("+psycopg", ""), url.rsplit("/", 1)[0]
    with psycopg.connect(admin, autocommit=True) as connection:
        for name in names:
            connection.execute(f'CREATE DATABASE "{name}"')
    yield [f"{base}/{name}" for name in names]
    with psycopg.connect(admin, autocommit=True) as connection:
        for name in names:
            connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


@pytest.fixture
def postgres_database(postgres_url):
    """URL of a fresh database for one test."""
    with databases(postgres_url, f"t{uuid.uuid4().hex[:12]}") as (url,):
        yield url


@pytest.fixture
def quiet():
    """No line of Optuna's below an error."""
    logger = logging.getLogger("optuna")
    level = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(level)


@pytest.fixture(scope="session")
def empty_study(tmp_path_factory):
    """A file with Optuna's tables: copying it is ten times as fast as creating one."""
    import optuna

    path = tmp_path_factory.mktemp("empty") / "study.db"
    storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
    storage.remove_session()
    storage.engine.dispose()
    return path


@pytest.fixture
def study_tables(tmp_path, empty_study):
    """Lays Optuna's tables into ``study.db`` of the test's folder, where a study will lie."""
    shutil.copy(empty_study, tmp_path / "study.db")


@pytest.fixture
def local_hosts():
    """Hosts in this process, and no Ray."""
    pytest.importorskip("ray", reason="Ray is not installed (the ray extra)")
    from tests.raytune_searchers.hosts import LocalRay

    with LocalRay().installed() as local:
        yield local
