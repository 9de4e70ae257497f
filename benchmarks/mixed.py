"""DP-GIBO with choices: three real problems, beside tuning without privacy.

Each problem of :mod:`benchmarks.mixed_problems` has two categorical and two or three numeric
parameters. Measured is the true mean loss at what is recommended, less that of the best trial of
Optuna's TPESampler, without privacy and with as many trials:

- ``now``: ``DPGIBO`` with its defaults.
- ``one start``: what was planned before choices were selected (``n_starts=16``): the best of 16
  start points fixes them.

Neither host nor vault stands around these runs and numpy draws their noise. Settings were
chosen on seeds from 0 on; these are others. The three problems are one instance each.

    python -m benchmarks.mixed [--seeds 20]

Takes about ten minutes the first time (models are fitted and kept), then four.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from benchmarks.mixed_problems import PROBLEMS, Table
from benchmarks.simulation import followed
from privbo_plugins.algorithms.dp_gibo import DPGIBO, GIBOConfig, make_plan
from privbo_plugins.spaces import Categorical, Int

Array = NDArray[np.float64]
Row = dict[str, Any]

RESULTS = Path(__file__).parent / "results"
ARMS: dict[str, dict[str, Any]] = {"one start": {"n_starts": 16}, "now": {}}
MUS = (1.0, 0.3, 0.1, 0.03)
FIRST = 5000


def tune(problem: Table, mu: float, seed: int, given: dict[str, Any]) -> tuple[float, int]:
    """The true mean loss at the recommendation, and the planned trials."""
    config = GIBOConfig(mu=mu, **given)
    plan = make_plan(config, problem.space, problem.n_records)
    algorithm = DPGIBO(config, problem.space, seed=seed, plan=plan)
    u = followed(algorithm, problem.losses, seed)
    return _truth(problem, u), plan.n_trials


def _truth(problem: Table, x: Array) -> float:
    return float(problem.losses(x).mean())


def tpe(problem: Table, n_trials: int, seed: int) -> float:
    """The least mean loss that TPESampler evaluates, without privacy."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    asked = {name: _distribution(dim) for name, dim in problem.space.items()}
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=FIRST + seed))
    for _ in range(n_trials):
        trial = study.ask(asked)
        got = trial.params
        x = [
            float(got[name]) if isinstance(dim, Categorical) else dim.encode(got[name])
            for name, dim in problem.space.items()
        ]
        study.tell(trial, _truth(problem, np.array(x, dtype=float)))
    return study.best_value


def _distribution(dim: Any) -> Any:
    """Of choices, their numbers."""
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    if isinstance(dim, Categorical):
        return CategoricalDistribution(range(len(dim.choices)))
    kind = IntDistribution if isinstance(dim, Int) else FloatDistribution
    return kind(dim.low, dim.high, log=dim.log)


def measure(seeds: int) -> list[Row]:
    """One row a problem, arm and mu."""
    rows: list[Row] = []
    tasks = [(name, arm, mu) for name in PROBLEMS for mu in MUS for arm in ARMS]
    rivals: dict[tuple[str, int, int], float] = {}
    for name, arm, mu in tqdm(tasks):
        problem, excess, n = PROBLEMS[name](), [], 0
        for seed in range(FIRST, FIRST + seeds):
            found, n = tune(problem, mu, seed, ARMS[arm])
            key = (name, n, seed)
            if key not in rivals:
                rivals[key] = tpe(problem, n, seed)
            excess.append(found - rivals[key])
        rows.append(_row(name, arm, mu, problem.n_records, n, excess))
    return rows


def _row(name: str, arm: str, mu: float, n: int, trials: int, excess: list[float]) -> Row:
    error = float(np.std(excess, ddof=1)) / math.sqrt(len(excess))
    return {
        "problem": name, "arm": arm, "mu": mu, "n": n, "trials": trials,
        "median": round(float(np.median(excess)), 5), "mean": round(float(np.mean(excess)), 5),
        "standard error": round(error, 5), "worst": round(max(excess), 5),
        "excess": np.round(excess, 5).tolist(),
    }  # fmt: skip


def draw(rows: list[Row], path: Path) -> None:
    """Excess over TPE without privacy, by mu; a panel a problem."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.6), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(PROBLEMS), sharey=True), PROBLEMS, strict=True):
        for arm, marker in zip(ARMS, "os", strict=True):
            own = [row for row in rows if (row["problem"], row["arm"]) == (name, arm)]
            axes.errorbar(
                [row["mu"] for row in own], [row["mean"] for row in own],
                [row["standard error"] for row in own], marker=marker, capsize=3, label=arm,
            )  # fmt: skip
        axes.axhline(0.01, color="grey", linestyle=":")
        axes.set(xscale="log", xlabel="mu", title=f"{name}, n = {own[0]['n']}")
    figure.axes[0].set_ylabel("mean loss above that of TPE\nwithout privacy")
    figure.axes[0].legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Measures, prints and keeps the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    arguments = parser.parse_args()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = measure(arguments.seeds)
    for row in rows:
        print(
            f"{row['problem']:9} {row['arm']:9} mu={row['mu']:<5} {row['trials']} trials: median "
            f"{row['median']:.4f} mean {row['mean']:.4f} ± {row['standard error']:.4f} worst "
            f"{row['worst']:.4f}"
        )
    kept = {"machine": platform.machine(), "seeds": arguments.seeds, "rows": rows}
    (RESULTS / "mixed.json").write_text(json.dumps(kept, indent=1) + "\n")
    draw(rows, RESULTS / "mixed.png")


if __name__ == "__main__":
    main()
