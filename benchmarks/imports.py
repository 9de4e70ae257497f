"""What importing the plugins costs, beside the hosts' own imports in the same run.

``python -m benchmarks.imports`` imports each in fresh interpreters, in turn, and prints the median
of two figures with their ratio to the host's: the time that ``-X importtime`` adds up, and the
CPU seconds of the process beyond an empty one. ``--write`` keeps them in
``benchmarks/results/imports.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from tqdm import tqdm

RESULTS = Path(__file__).parent / "results" / "imports.json"

HOSTS: Mapping[str, tuple[str, ...]] = {
    "import optuna": (
        "import optuna_samplers",
        "import optuna, optuna_samplers",
        "from optuna_samplers import DPGIBOSampler",
        "from optuna_samplers import LDPGPUCBSampler",
        "from optuna_samplers import DPFTSDESampler",
        "from optuna_samplers import POGPUCBSampler",
        "from optuna_samplers import DUETSSampler",
        "from optuna_samplers import ldp_objective",
    ),
    "from ray import tune": (
        "import raytune_searchers",
        "from ray import tune; import raytune_searchers",
        "from raytune_searchers import DPGIBOSearch",
        "from raytune_searchers import LDPGPUCBSearch",
        "from raytune_searchers import DPFTSDESearch",
        "from raytune_searchers import POGPUCBSearch",
        "from raytune_searchers import DUETSSearch",
        "from raytune_searchers import ldp_trainable",
    ),
}
"""A host's own import, and what is compared with it."""

EMPTY = "pass"


def measure(statement: str) -> tuple[float, float]:
    """(seconds that ``-X importtime`` adds up, CPU seconds) of one fresh interpreter."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", statement],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    lines = [line.removeprefix("import time:") for line in done.stderr.splitlines()]
    selves = (line.split("|")[0].strip() for line in lines if line.count("|") == 2)
    return sum(int(us) for us in selves if us.isdigit()) / 1e6, cpu


def figures(repeats: int) -> dict[str, tuple[float, float]]:
    """Medians over so many rounds, in which every statement is measured once, in turn."""
    statements = [EMPTY, *HOSTS, *(s for rivals in HOSTS.values() for s in rivals)]
    found: dict[str, list[tuple[float, float]]] = {statement: [] for statement in statements}
    for repeat in tqdm(range(repeats + 1), desc="rounds"):
        for statement in statements:
            measured = measure(statement)
            if repeat:  # the first round writes byte code and warms the disk's cache
                found[statement].append(measured)
    return {s: (median(t for t, _ in m), median(c for _, c in m)) for s, m in found.items()}


def table(repeats: int) -> dict[str, dict[str, float]]:
    """Seconds beyond an empty interpreter, and their ratios to the host's own."""
    medians = figures(repeats)
    empty, rows = medians[EMPTY], {}
    for host, rivals in HOSTS.items():
        base = [value - rest for value, rest in zip(medians[host], empty, strict=True)]
        for statement in (host, *rivals):
            time, cpu = (v - rest for v, rest in zip(medians[statement], empty, strict=True))
            rows[statement] = {
                "import_seconds": round(time, 3),
                "import_ratio": round(time / base[0], 2),
                "cpu_seconds": round(cpu, 3),
                "cpu_ratio": round(cpu / base[1], 2),
            }
    return rows


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--write", action="store_true", help=f"keep the figures in {RESULTS}")
    arguments = parser.parse_args()
    rows = table(arguments.repeats)
    print(f"{'':52s} importtime  ratio   CPU s  ratio")
    for statement, row in rows.items():
        print(
            f"{statement:52s} {row['import_seconds']:10.3f} {row['import_ratio']:6.2f}"
            f" {row['cpu_seconds']:7.3f} {row['cpu_ratio']:6.2f}"
        )
    if arguments.write:
        RESULTS.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
