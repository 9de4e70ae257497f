"""What dashboards show of a private study, beside the truth that they cannot see.

Each run is one of ``DPGIBOSampler`` with its defaults. Compared with the exact mean validation
loss are ``study.best_value`` and ``study.best_params``, as the study shows them (estimates from
all releases so far) and as they would be if each trial showed its single noisy draw. ``error`` is
the best value minus the exact loss at its parameters; ``excess`` is that exact loss minus the one
at ``sampler.recommend(study)``. Given are medians over seeds with their bootstrap standard errors.
Seeds drive candidates; privacy noise is the operating system's, so figures vary from run to run.

    python -m benchmarks.dashboard_values [--seeds 24] [--jobs 2] [--problems demo] [--mus 1]
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import FloatDistribution
from tqdm import tqdm

from benchmarks.quality import RESULTS, distributions, make
from examples.demo import SPACE
from examples.digits import losses
from optuna_samplers import DPGIBOSampler
from privbo_plugins.errors import UtilityWarning

PROBLEMS = ("demo", "gp-ard-15")
MUS = (1.0, 0.3)
_LEAST = {"demo": 24, "gp-ard-15": 12}
_RESAMPLED = 2000

Task = tuple[str, float, int]
Losses = Callable[[dict[str, float]], Any]


def _problem(name: str) -> tuple[dict[str, FloatDistribution], Losses]:
    if name == "demo":
        return SPACE, lambda params: losses(**params)
    problem = make(name)
    return distributions(problem), problem.losses


def run(task: Task) -> dict[str, Any]:
    """One study, and what it shows."""
    name, mu, seed = task
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", UtilityWarning)
    space, evaluate = _problem(name)

    def exact(params: dict[str, float]) -> float:
        return float(np.clip(evaluate(params), 0.0, 1.0).mean())

    def objective(trial: Any) -> Any:
        return evaluate(
            {n: trial.suggest_float(n, d.low, d.high, log=d.log) for n, d in space.items()}
        )

    sampler = DPGIBOSampler(mu=mu, search_space=space, seed=seed)
    study = optuna.create_study(sampler=sampler)
    study.optimize(sampler.private(objective))
    drawn = [t.user_attrs["privbo:release"] for t in study.trials]
    luckiest = study.trials[int(np.argmin(drawn))]
    recommended, best, lucky = (
        exact(p) for p in (sampler.recommend(study), study.best_params, luckiest.params)
    )
    return {
        "problem": name,
        "mu": mu,
        "seed": seed,
        "error": study.best_value - best,
        "excess": best - recommended,
        "best_trial": study.best_trial.number,
        "draw_error": min(drawn) - lucky,
        "draw_excess": lucky - recommended,
        "recommended": recommended,
    }


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians over the seeds of each problem and mu, with standard errors."""
    groups: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["problem"], row["mu"]), []).append(row)
    return [
        {"problem": problem, "mu": mu, "seeds": len(group)}
        | {name: _median(np.abs([row[name] for row in group])) for name in ("error", "draw_error")}
        | {name: _median(np.array([r[name] for r in group])) for name in ("excess", "draw_excess")}
        for (problem, mu), group in groups.items()
    ]


def _median(values: Any) -> dict[str, float]:
    rng = np.random.default_rng(0)
    again = np.median(rng.choice(values, size=(_RESAMPLED, len(values))), axis=1)
    return {
        "median": float(np.median(values)),
        "se": float(again.std()),
        "mean": float(np.mean(values)),
        "worst": float(np.max(values)),
    }


def main() -> None:
    """Runs everything, prints the medians and writes JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seeds", type=int, default=None, help="24, and 12 of the slower problem")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--problems", nargs="+", default=list(PROBLEMS), choices=PROBLEMS)
    parser.add_argument("--mus", type=float, nargs="+", default=list(MUS))
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    todo = [
        (problem, mu, 400 + seed)
        for problem in arguments.problems
        for mu in arguments.mus
        for seed in range(arguments.seeds or _LEAST[problem])
    ]
    with ProcessPoolExecutor(arguments.jobs, get_context("spawn")) as pool:
        rows = list(tqdm(pool.map(run, todo), total=len(todo), desc="runs"))
    medians = summary(rows)
    for row in medians:
        print(json.dumps(row))
    command = "python -m benchmarks.dashboard_values"
    told = {"command": command, "summary": medians, "runs": rows}
    path = arguments.out / "dashboard_values.json"
    path.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
