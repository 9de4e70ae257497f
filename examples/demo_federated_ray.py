"""Twelve clinics tune one kind of model, each on its own patients, in one Ray Tune experiment.

Run it with ``python -m examples.demo_federated_ray``. It writes ``demo-federated/`` (Tune's
results: who ran when, and nothing else) and ``demo-federated-private/`` (a database and the best
configuration of each clinic, for that clinic alone).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # no tables: they would only show tags

import numpy as np
import ray
from ray import tune

from raytune_searchers import DPFTSDESearch, FederationConfig

CLINICS = tuple("oslo bergen bodo hamar molde moss narvik voss alta gol lom vardo".split())

SPACE = {"C": tune.loguniform(1e-2, 1e3), "gamma": tune.loguniform(1e-5, 1e2)}


def accuracy(clinic: str, config: dict[str, Any]) -> float:
    """Accuracy on a clinic's own records, which are loaded where they are used."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import cross_val_score
    from sklearn.svm import SVC

    X, y = load_digits(return_X_y=True)
    own = np.arange(len(y)) % len(CLINICS) == CLINICS.index(clinic)
    return float(cross_val_score(SVC(**config), X[own], y[own], cv=3).mean())


def main() -> None:
    """Runs the federation, then shows what everybody may see and what one clinic knows."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--epsilon", type=float, default=4.0, help="user-level budget")
    parser.add_argument("--trials", type=int, default=8, help="trials of each clinic")
    parser.add_argument("--seed", type=int, default=0, help="drives points, never noise")
    parser.add_argument("--out", type=Path, default=Path(), help="where to write")
    options = parser.parse_args()
    shown, private = (options.out / n for n in ("demo-federated", "demo-federated-private"))
    for folder in (shown, private):
        shutil.rmtree(folder, ignore_errors=True)
    private.mkdir(parents=True, mode=0o700)
    place = private.resolve()

    def keep(clinic: Any, config: Any, value: Any) -> None:
        (place / f"{clinic}.json").write_text(json.dumps({"config": config, "accuracy": value}))

    ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    search = DPFTSDESearch(
        FederationConfig(n_agents=len(CLINICS), epsilon=options.epsilon, n_startup=4),
        search_space=SPACE,
        n_trials=options.trials,
        agents=CLINICS,
        agent_vaults=f"sqlite:///{place}/{{agent}}.db",
        seed=options.seed,
    )
    results = tune.Tuner(
        search.private(accuracy, keep),
        tune_config=tune.TuneConfig(search_alg=search, num_samples=-1, reuse_actors=True),
        run_config=tune.RunConfig(
            storage_path=str(shown.resolve().parent), name=shown.name, verbose=0
        ),
    ).fit()
    print("What everybody sees:")
    print(results.get_dataframe()[["agent", "round", "federation_round"]].tail(4))
    print(f"\n{search.guarantee(results)}\n")
    print(f"What {CLINICS[0]} alone knows: {(place / f'{CLINICS[0]}.json').read_text()}")
    ray.shutdown()


if __name__ == "__main__":
    main()
