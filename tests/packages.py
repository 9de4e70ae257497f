"""The package as somebody installs it: built, checked, and each extra in an empty environment.

    python -m tests.packages [--pythons python3.11 ...] [--extras optuna ...] [--write]

Builds wheel and sdist, asks twine, installs the wheel with each extra into a new environment,
runs there what the extra is for, and measures what pip has brought. ``--write`` keeps the sizes in
benchmarks/results/packages.json, of which docs/install.md tells. Needs an index of packages; takes
some ten minutes for one interpreter.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tqdm import tqdm

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "packages.json"

PYTHONS = ("python3.11", "python3.12", "python3.13")

_ENGINE = """
from privbo_plugins.algorithms.dp_gibo import GIBOConfig, make_plan
from privbo_plugins.spaces import Float, Space
assert make_plan(GIBOConfig(mu=1.0), Space({"x": Float(0, 1)}), 1000).n_trials > 10
"""

_OPTUNA = """
import optuna
from optuna_samplers import DPGIBOSampler
sampler = DPGIBOSampler(mu=1, n_trials=9, seed=0)
study = optuna.create_study(sampler=sampler)
study.optimize(sampler.private(lambda t: [(t.suggest_float("x", 0, 1) - i / 500) ** 2
                                          for i in range(500)]), n_trials=5)
assert sampler.guarantee(study).protected and len(study.trials) == 5
"""

_RAY = """
from ray import tune
from raytune_searchers import DPGIBOSearch
search = DPGIBOSearch(mu=1, metric="loss", mode="min")
assert search.plan({"x": tune.uniform(0, 1)}, n_records=1000).n_trials > 10
"""

_VIZ = """
from privbo_plugins import plots, reports
"""


_FEDERATION = """
import numpy as np
from privbo_plugins.federation import FederatedServer, connect
from privbo_plugins.algorithms.dp_fts_de import FederationConfig
from privbo_plugins.spaces import Float, Space
space = Space({"x": Float(0, 1)})
server = FederatedServer(FederationConfig(n_agents=1, epsilon=2.0), space=space)
server.listen()
link = connect(server.invitation(0))
assert link.collect(link.submit(np.zeros(link.config.message_length))).round == 1
link.close()
server.close()
"""

SMOKE = {
    "": _ENGINE,
    "optuna": _OPTUNA,
    "ray": _RAY,
    "sklearn": "import sklearn_search",
    "viz": _VIZ,
    "postgres": "import psycopg",
    "parquet": "import pyarrow",
    "federation": _FEDERATION,
    "all": _ENGINE
    + _OPTUNA
    + _RAY
    + _VIZ
    + _FEDERATION
    + "from sklearn_search import PrivateSearch",
}
"""What an environment with one extra must be able to run; "" is the engine alone."""


def built(folder):
    """Wheel and sdist of this checkout, made without the network.

    Args:
        folder: Where they are written.
    """
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def checked(*files):
    """What twine says of them.

    Raises:
        CalledProcessError: If an index would refuse one.
    """
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, files)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def environment(python, folder):
    """A new, empty environment; its interpreter."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True, capture_output=True)
    return folder / "bin" / "python"


def installed(python, wheel, extra):
    """Installs the wheel with an extra, runs what it is for, and says what pip has brought."""
    before = _packages(python)
    wanted = f"{wheel}[{extra}]" if extra else str(wheel)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-compile", wanted]
    subprocess.run(pip, check=True, capture_output=True)
    subprocess.run([str(python), "-c", SMOKE[extra]], check=True, cwd="/", capture_output=True)
    return {
        "extra": extra,
        "packages": len(_packages(python) - before),
        "mb": round(_size(python.parent.parent) / 1e6),
    }


def _packages(python):
    command = [str(python), "-m", "pip", "list", "--format=json"]
    listed = subprocess.run(command, check=True, capture_output=True).stdout
    return {package["name"] for package in json.loads(listed)}


def _size(folder):
    """Bytes of the site-packages, without pip's own and without byte code."""
    (site,) = folder.glob("lib/python*/site-packages")
    own = {path for path in site.iterdir() if path.name.split("-")[0] in ("pip", "setuptools")}
    files = (
        path
        for path in site.rglob("*")
        if path.is_file() and path.suffix != ".pyc" and not own.intersection(path.parents)
    )
    return sum(path.stat().st_size for path in files)


def main():
    """Builds, checks, installs and tells."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--pythons", nargs="+", default=list(PYTHONS))
    parser.add_argument("--extras", nargs="+", default=list(SMOKE), choices=list(SMOKE))
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    found = [python for python in given.pythons if shutil.which(python)]
    for python in set(given.pythons) - set(found):
        print(f"{python} is not installed: nothing is tried with it.")
    with tempfile.TemporaryDirectory() as folder:
        wheel, sdist = built(Path(folder) / "dist")
        print(checked(wheel, sdist))
        rows = []
        for python, extra in tqdm([(p, e) for p in found for e in given.extras]):
            place = Path(folder) / f"{python}-{extra or 'engine'}"
            rows.append({"python": python} | installed(environment(python, place), wheel, extra))
            shutil.rmtree(place)
            tqdm.write(json.dumps(rows[-1]))
    if given.write:
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
