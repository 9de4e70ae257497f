"""The main job on Ray Tune: the SVM of ``examples.demo``, tuned privately by parallel trials.

Run it with ``make demo-ray`` or ``python -m examples.demo_ray``; it writes ``demo-ray/`` (Tune's
results, safe to share), ``demo-ray-private.db`` (the vault, not to be shared) and
``demo-ray-report.html``.
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # a bar of our own instead of tables

import numpy as np
import ray
from numpy.typing import NDArray
from ray import tune
from tqdm import tqdm

from examples.digits import N_VALID, losses, print_truth
from raytune_searchers import DPGIBOSearch

SPACE = {"C": tune.loguniform(1e-2, 1e3), "gamma": tune.loguniform(1e-5, 1e2)}


def trainable(config: dict[str, Any]) -> NDArray[np.float64]:
    """What the vault receives; Tune's results never do."""
    return losses(config["C"], config["gamma"])


class Bar(tune.Callback):  # type: ignore[misc]  # Ray has no types
    """One line of progress instead of Tune's tables."""

    def __init__(self, total: int) -> None:
        self._total = total

    def setup(self, **_info: Any) -> None:
        """Tune pickles callbacks before this, so the bar is made here."""
        self._bar = tqdm(total=self._total, desc="private trials")

    def on_trial_complete(self, **_info: Any) -> None:
        """One trial more."""
        self._bar.update()

    def on_experiment_end(self, **_info: Any) -> None:
        """The plan is used up."""
        self._bar.close()


def read_arguments() -> argparse.Namespace:
    """Reads the command line, and begins anew in the folder it names."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--mu", type=float, default=1.0, help="total Gaussian DP parameter")
    parser.add_argument("--seed", type=int, default=0, help="drives candidates, never noise")
    parser.add_argument("--trials", type=int, default=None, help="the most trials to run")
    parser.add_argument("--out", type=Path, default=Path(), help="folder for what is written")
    parser.add_argument("--compare", action="store_true", help="with a grid without privacy")
    arguments = parser.parse_args()
    arguments.out = arguments.out.resolve()
    arguments.out.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(arguments.out / "demo-ray", ignore_errors=True)
    (arguments.out / "demo-ray-private.db").unlink(missing_ok=True)
    return arguments


def main() -> None:
    """Runs the private experiment, and says what may be claimed for it."""
    arguments = read_arguments()
    out = arguments.out
    search = DPGIBOSearch(
        mu=arguments.mu,
        metric="error",
        mode="min",
        seed=arguments.seed,
        n_trials=arguments.trials,
        vault=f"sqlite:///{out / 'demo-ray-private.db'}",
        run_name="demo",
    )
    plan = search.plan(SPACE, n_records=N_VALID)
    print(plan)
    print("Released values carry that noise and may be negative.")
    print("demo-ray/ and demo-ray-report.html may be shared, demo-ray-private.db may not.\n")
    ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    tuner = tune.Tuner(
        search.private(trainable),
        param_space=SPACE,
        tune_config=tune.TuneConfig(search_alg=search, num_samples=-1, reuse_actors=True),
        run_config=tune.RunConfig(
            name="demo-ray", storage_path=str(out), verbose=0, callbacks=[Bar(plan.n_trials)]
        ),
    )
    results = tuner.fit()
    search.purge()

    recommended = search.recommend()
    final = next(value for role, _, value in search.history().values if role == "final")
    print("\nRecommended:", {name: f"{value:.3g}" for name, value in recommended.items()})
    print("Released value there:", f"{final:.4f}", "(private, noisy)")
    print("\nGuarantee:", search.guarantee(results))
    if arguments.compare:
        print_truth(recommended)
    print("\nReport:", search.report(out / "demo-ray-report.html", results))
    ray.shutdown()


if __name__ == "__main__":
    main()
