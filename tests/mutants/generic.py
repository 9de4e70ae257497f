"""Mutants that mutmut makes of whole modules: ``python -m tests.mutants.generic [MODULE ...]``.

It changes numbers, operators, arguments and conditions one at a time in a copy of the sources, and
prints each change that no test notices. Many of these change nothing that matters (an error's
text, a tighter bound), so a module passes if the share that is caught does not fall.
"""

import json
import subprocess
import sys

from tests.mutants.workspace import PACKAGES, Workspace

MODULES = {
    "privacy/mechanisms.py": ("test_mechanisms.py", "test_aggregate.py"),
    "privacy/ledger.py": ("test_release.py", "test_session.py"),
    "store/release.py": ("test_release.py", "test_session.py"),
    "store/rollback_guard.py": ("test_rollback_guard.py", "test_release.py"),
}
"""Module of the engine to the tests that should notice."""

LEAST = 0.5
"""Share of a module's mutants that its tests catch, at least."""


def settings(module, tests):
    """What mutmut reads of one module."""
    values = {
        "source_paths": ["privbo_plugins"],
        "only_mutate": [f"privbo_plugins/{module}"],
        "pytest_add_cli_args_test_selection": [f"tests/engine/{test}" for test in tests],
        "pytest_add_cli_args": ["-n", "0", "-p", "no:cacheprovider"],
        "also_copy": [*PACKAGES[1:], "examples", "benchmarks", "README.md", "pyproject.toml"],
    }
    lines = [f"{name}=\n" + "".join(f"    {v}\n" for v in found) for name, found in values.items()]
    return "[mutmut]\n" + "".join(lines)


def caught(module, workspace):
    """Tries all mutants of a module, and says what share of them was caught."""

    def mutmut(*command):
        done = subprocess.run(
            [sys.executable, "-m", "mutmut", *command], cwd=workspace.folder,
            env=workspace.environment(workspace.folder), stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, check=True, text=True,
        )  # fmt: skip
        return done.stdout

    (workspace.folder / "setup.cfg").write_text(settings(module, MODULES[module]))
    mutmut("run", "--max-children", "2")
    for line in mutmut("results").splitlines():
        if line.endswith(": survived"):
            print(mutmut("show", line.split(":")[0].strip()))
    mutmut("export-cicd-stats")
    stats = json.loads((workspace.folder / "mutants" / "mutmut-cicd-stats.json").read_text())
    print(f"{module}: {stats['killed']} of {stats['total']} caught", flush=True)
    return float(stats["killed"] / stats["total"])


def main(modules):
    """Exit code 0 if enough was caught in each module."""
    shares = []
    for module in modules or MODULES:
        workspace = Workspace()
        try:
            shares.append(caught(module, workspace))
        finally:
            workspace.close()
    return int(min(shares) < LEAST)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
