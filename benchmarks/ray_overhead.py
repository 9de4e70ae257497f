"""What the private channel costs on Ray Tune, beside random search in the same run.

``python -m benchmarks.ray_overhead`` runs eight trials at once with Tune's BasicVariantGenerator
and with DPGIBOSearch (vault in an actor, and in a SQLite file) in turn, with the same
``max_concurrent_trials``, and prints

- wall times with their ratios to random search, for trials of one and of five seconds, everything
  counted from building the Tuner to the end of ``fit`` (the vault's actor starts in that time);
- CPU seconds of a trial's process, from its start to the end of its trial;
- the wall time without ``max_concurrent_trials``, where Tune starts one trial of a searcher after
  another.

``--write`` keeps the figures in ``benchmarks/results/ray_overhead.json``.
"""

from __future__ import annotations

import argparse
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
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # as installed: workers find byte code

import numpy as np
import ray
from numpy.typing import NDArray
from ray import tune
from ray.tune.search.basic_variant import BasicVariantGenerator
from tqdm import tqdm

from raytune_searchers import DPGIBOSearch

RESULTS = Path(__file__).parent / "results" / "ray_overhead.json"

TRIALS = 8
SECONDS = (1.0, 5.0)
N_RECORDS = 1000

SPACE = {"x": tune.uniform(0.0, 1.0), "y": tune.uniform(0.0, 1.0)}

Trainable = Callable[[dict[str, Any]], Any]


def losses(config: dict[str, Any]) -> NDArray[np.float64]:
    """Some seconds of waiting, then one loss per record."""
    time.sleep(config["seconds"])
    records = np.random.default_rng(0).normal(0.7, 0.1, size=N_RECORDS)
    return np.asarray((config["x"] - records) ** 2 + config["y"] ** 2)


def mean_loss(config: dict[str, Any]) -> dict[str, float]:
    """The same without privacy."""
    return {"loss": float(losses(config).mean())}


def counted(trainable: Trainable, folder: Path) -> Trainable:
    """A trainable that notes the CPU seconds of its process when its trial is over."""

    def trial(config: dict[str, Any]) -> Any:
        result = trainable(config)
        (folder / f"cpu-{os.getpid()}").write_text(str(time.process_time()))
        return result

    return trial


def random_search(_folder: Path) -> tuple[Any, Trainable]:
    """Tune's own random search."""
    return BasicVariantGenerator(), mean_loss


def private_search(_folder: Path) -> tuple[Any, Trainable]:
    """DP-GIBO with its vault in the actor's memory."""
    search = DPGIBOSearch(mu=1, metric="loss", mode="min", n_steps=25)
    return search, search.private(losses)


def private_search_on_disk(folder: Path) -> tuple[Any, Trainable]:
    """DP-GIBO with its vault in a file."""
    vault = f"sqlite:///{folder / 'vault.db'}"
    search = DPGIBOSearch(mu=1, metric="loss", mode="min", n_steps=25, vault=vault)
    return search, search.private(losses)


ARMS: dict[str, Callable[[Path], tuple[Any, Trainable]]] = {
    "BasicVariantGenerator": random_search,
    "DPGIBOSearch, actor": private_search,
    "DPGIBOSearch, SQLite": private_search_on_disk,
}


def run(arm: str, seconds: float, at_once: int | None) -> tuple[float, float]:
    """(wall seconds, median CPU seconds of a trial's process) of one experiment."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        began = time.perf_counter()
        search, trainable = ARMS[arm](folder)
        config = {"search_alg": search, "num_samples": TRIALS, "max_concurrent_trials": at_once}
        if at_once is not None and isinstance(search, BasicVariantGenerator):
            config["search_alg"] = BasicVariantGenerator(max_concurrent=at_once)
            del config["max_concurrent_trials"]
        results = tune.Tuner(
            counted(trainable, folder),
            param_space={**SPACE, "seconds": seconds},
            tune_config=tune.TuneConfig(**config, reuse_actors=True),
            run_config=tune.RunConfig(name="run", storage_path=name, verbose=0),
        ).fit()
        wall = time.perf_counter() - began
        if isinstance(search, DPGIBOSearch):
            search.close()  # or its vault's process would stand beside the next experiment
        if len(results) != TRIALS or results.errors:
            raise RuntimeError(f"{arm}: {len(results)} trials, {len(results.errors)} errors.")
        return wall, median(float(path.read_text()) for path in folder.glob("cpu-*"))


def measure(seconds: float, at_once: int | None, repeats: int) -> dict[str, Any]:
    """Figures of every arm, arms in turn."""
    found: dict[str, list[tuple[float, float]]] = {arm: [] for arm in ARMS}
    for repeat in tqdm(range(repeats + 1), desc=f"{seconds:g} s a trial"):
        for arm in ARMS:
            figures = run(arm, seconds, at_once)
            if repeat:  # the first round writes byte code and starts what Ray keeps
                found[arm].append(figures)
    walls = {arm: median(wall for wall, _ in figures) for arm, figures in found.items()}
    cpus = {arm: median(cpu for _, cpu in figures) for arm, figures in found.items()}
    base = "BasicVariantGenerator"
    return {
        arm: {
            "wall_seconds": [round(wall, 2) for wall, _ in found[arm]],
            "wall_ratio": round(walls[arm] / walls[base], 3),
            "cpu_seconds_a_trial": round(cpus[arm], 3),
            "cpu_seconds_beyond": round(cpus[arm] - cpus[base], 3),
        }
        for arm in ARMS
    }


def main() -> None:
    """Measures with as many (logical) CPUs as trials."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--write", action="store_true", help=f"keep the figures in {RESULTS}")
    arguments = parser.parse_args()
    ray.init(num_cpus=TRIALS, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    result = {
        f"{seconds:g} s a trial, max_concurrent_trials={at_once}": measure(
            seconds, at_once, arguments.repeats
        )
        for seconds, at_once in [*((s, TRIALS) for s in SECONDS), (SECONDS[0], None)]
    }
    ray.shutdown()
    for setting, arms in result.items():
        print(setting)
        for arm, figures in arms.items():
            print(
                f"  {arm:24s} {median(figures['wall_seconds']):6.2f} s, "
                f"{figures['wall_ratio']:.2f} times random search; "
                f"{figures['cpu_seconds_a_trial']:.2f} CPU s a trial's process, "
                f"{figures['cpu_seconds_beyond']:+.2f}"
            )
    if arguments.write:
        RESULTS.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
