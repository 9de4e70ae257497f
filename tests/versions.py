"""Whether the package works with the oldest and the newest versions that it allows.

``python -m tests.versions`` (``make test-hosts``) makes an environment of its own with the least
versions that pyproject.toml names, and runs a quick part of the tests of both hosts in it. The
newest versions are those of the environment that runs this, unless there are newer ones by now:
then they get an environment too. Environments are kept, and made anew when pyproject.toml changes.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path

HERE = Path(__file__).parents[1]

TESTS = (
    "tests/raytune_searchers/test_closing.py", "tests/raytune_searchers/test_main_job.py",
    "tests/raytune_searchers/test_hosts.py", "tests/contracts/test_ray_adapter.py",
    "tests/contracts/test_leaks_exceptions.py", "tests/optuna_samplers/test_lifecycle.py",
    *(f"tests/contracts/test_optuna_adapter.py::Test{name}Sampler"
      for name in ("DPGIBO", "LDPGPUCB", "POGPUCB", "DPFTSDE")),
)  # fmt: skip
"""Adapters, main jobs, what is closed and what leaks; of samplers one a kind of secret."""

HOSTS = ("optuna", "ray")

BESIDE = ("sklearn", "viz", "federation")
"""Extras that the tests need; at their newest versions in every environment."""

TOOLS = (
    "pytest", "pytest-xdist", "pytest-timeout", "hypothesis", "pandas", "pyarrow",
    "optuna-dashboard", "cmaes",
)  # fmt: skip

QUIET = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "OMP_NUM_THREADS": "1"}
"""Older versions of Ray warn of what newer ones do, and here warnings are errors."""

UNTIDY = "ignore:subprocess:ResourceWarning"
"""They also forget processes of theirs that still run."""


def declared(project):
    """(what the package and its hosts require, what tests need besides), as pip reads it."""
    table = tomllib.loads(project.read_text())["project"]
    extras = table["optional-dependencies"]
    required = [*table["dependencies"], *(one for host in HOSTS for one in extras[host])]
    return required, [*(one for extra in BESIDE for one in extras[extra]), *TOOLS]


def least(requirement):
    """The oldest version that a requirement allows.

    Raises:
        ValueError: If it names none.

    Example:
        >>> least("ray[tune]>=2.55.1"), least("numpy>=2.0")
        ('ray[tune]==2.55.1', 'numpy==2.0')
    """
    found = re.fullmatch(r"([\w.\[\]-]+)>=([\d.]+)(,<[\d.]+)?", requirement)
    if found is None:
        raise ValueError(f"{requirement} names no least version.")
    return f"{found[1]}=={found[2]}"


def environment(folder, requirements):
    """The interpreter of an environment with these, made unless it is there."""
    wanted = hashlib.sha256("\n".join(requirements).encode()).hexdigest()
    interpreter, stamp = folder / "bin" / "python", folder / "made-of"
    if not (stamp.exists() and stamp.read_text() == wanted):
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        _install(interpreter, requirements)
        stamp.write_text(wanted)
    return interpreter


def _install(interpreter, requirements):
    """By uv, in seconds, where this environment has it and it reaches an index; else by pip."""
    uv = Path(sys.executable).with_name("uv")
    fast = [uv, "pip", "install", "--quiet", "--python", interpreter, *requirements]
    if not uv.exists() or subprocess.run(fast, check=False).returncode != 0:
        slow = [interpreter, "-m", "pip", "install", "--quiet", "--no-compile", *requirements]
        subprocess.run(slow, check=True)


def newer(required):
    """What pip would install of these beside what is here, for example ``ray-2.60.1``."""
    hosts = [one for one in required if one.startswith(HOSTS)]
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--upgrade", "--no-deps"]
    done = subprocess.run([*command, *hosts], check=True, capture_output=True, text=True)
    return re.findall(r"^Would install (.*)$", done.stdout, re.MULTILINE)


def passed(interpreter):
    """Whether the tests pass there."""
    options = ("-q", "-n", "2", "-m", "not soak", "-W", UNTIDY, "-p", "no:cacheprovider")
    command = [interpreter, "-m", "pytest", *options, *TESTS]
    began = time.monotonic()
    env = {**os.environ, **QUIET, "PYTHONPATH": str(HERE)}
    done = subprocess.run(command, cwd=HERE, env=env, check=False)
    print(f"{interpreter.parents[1].name}: {time.monotonic() - began:.0f} s", flush=True)
    return done.returncode == 0


def main():
    """0 if all pass."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=HERE / ".venv-hosts")
    parser.add_argument("--only-install", action="store_true", help="run no test")
    given = parser.parse_args()
    folder = given.folder
    required, beside = declared(HERE / "pyproject.toml")
    sets = {"least": [least(one) for one in required]}
    if newer(required):
        sets["newest"] = required
    else:
        print(
            "newest: what is installed here, with which make test runs; nothing to do", flush=True
        )
    made = [environment(folder / name, [*kind, *beside]) for name, kind in sets.items()]
    results = [given.only_install or passed(interpreter) for interpreter in made]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
