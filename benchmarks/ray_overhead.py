"""What the private channel costs on Ray Tune: parallel trials of one second, beside random search.

``python -m benchmarks.ray_overhead`` runs the same trials with Tune's BasicVariantGenerator and
with DPGIBOSearch (vault in an actor, and in a SQLite file) in turn, and writes wall times with
their ratios to ``benchmarks/results/ray_overhead.json``. Everything is counted from building the
Tuner to the end of ``fit``: the vault's actor starts in that time.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")

import numpy as np
import ray
from numpy.typing import NDArray
from ray import tune
from ray.tune.search.basic_variant import BasicVariantGenerator
from tqdm import tqdm

from raytune_searchers import DPGIBOSearch

RESULTS = Path(__file__).parent / "results" / "ray_overhead.json"

TRIALS = 8
SECONDS = 1.0
N_RECORDS = 1000
REPEATS = 3

SPACE = {"x": tune.uniform(0.0, 1.0), "y": tune.uniform(0.0, 1.0)}


def losses(config: dict[str, Any]) -> NDArray[np.float64]:
    """A second of work, then one loss per record."""
    time.sleep(SECONDS)
    records = np.random.default_rng(0).normal(0.7, 0.1, size=N_RECORDS)
    return np.asarray((config["x"] - records) ** 2 + config["y"] ** 2)


def mean_loss(config: dict[str, Any]) -> dict[str, float]:
    """The same without privacy."""
    return {"loss": float(losses(config).mean())}


def random_search(_folder: Path) -> tuple[Any, Any]:
    """Tune's own random search."""
    return BasicVariantGenerator(), mean_loss


def private_search(_folder: Path) -> tuple[Any, Any]:
    """DP-GIBO with its vault in the actor's memory."""
    search = DPGIBOSearch(mu=1, metric="loss", mode="min", n_steps=25)
    return search, search.private(losses)


def private_search_on_disk(folder: Path) -> tuple[Any, Any]:
    """DP-GIBO with its vault in a file."""
    vault = f"sqlite:///{folder / 'vault.db'}"
    search = DPGIBOSearch(mu=1, metric="loss", mode="min", n_steps=25, vault=vault)
    return search, search.private(losses)


ARMS: dict[str, Callable[[Path], tuple[Any, Any]]] = {
    "BasicVariantGenerator": random_search,
    "DPGIBOSearch, actor": private_search,
    "DPGIBOSearch, SQLite": private_search_on_disk,
}


def wall_time(arm: str, folder: Path) -> float:
    """Seconds of one experiment of TRIALS trials, all at once."""
    began = time.perf_counter()
    search, trainable = ARMS[arm](folder)
    results = tune.Tuner(
        trainable,
        param_space=SPACE,
        tune_config=tune.TuneConfig(search_alg=search, num_samples=TRIALS, reuse_actors=True),
        run_config=tune.RunConfig(name=arm[:4], storage_path=str(folder), verbose=0),
    ).fit()
    if len(results) != TRIALS or results.errors:
        raise RuntimeError(f"{arm} ran {len(results)} trials with {len(results.errors)} errors.")
    return time.perf_counter() - began


def measure(cpus: int) -> dict[str, Any]:
    """Wall times of every arm in a Ray of so many (logical) CPUs, arms in turn."""
    ray.init(num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    times: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for repeat in tqdm(range(REPEATS + 1), desc=f"{cpus} CPUs"):
        for arm in ARMS:
            with tempfile.TemporaryDirectory() as folder:
                seconds = wall_time(arm, Path(folder))
            if repeat:  # the first round starts worker processes that the later ones find
                times[arm].append(seconds)
    ray.shutdown()
    base = median(times["BasicVariantGenerator"])
    return {
        arm: {"seconds": [round(t, 3) for t in ts], "ratio": round(median(ts) / base, 3)}
        for arm, ts in times.items()
    }


def main() -> None:
    """Measures with as many CPUs as trials, and with a quarter of them."""
    result = {f"{cpus} CPUs": measure(cpus) for cpus in (TRIALS, TRIALS // 4)}
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    for setting, arms in result.items():
        for arm, figures in arms.items():
            print(f"{setting}: {arm:24s} {median(figures['seconds']):6.2f} s", end="  ")
            print(f"{figures['ratio']:.2f} times random search")


if __name__ == "__main__":
    main()
